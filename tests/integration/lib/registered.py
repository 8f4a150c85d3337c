"""Registered memory, for rank.py: allocations by a key, and all_reduce of u32 vectors in them.

Element i of rank r's input is i % PERIOD * 3 + r * 5 + turn: results of a wrong place, rank or
operation are seen. PERIOD is a prime, so no page or slice boundary falls on a repetition.
"""

import array
import ctypes

from commd_client import DTYPES, check, lib

PERIOD = 1021
CANVAS = 0xA5
EDGE = 64  # bytes of canvas on both sides of a vector

lib.commd_alloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
lib.commd_free.argtypes = [ctypes.c_void_p]
memory = {}  # key: address, size, what owns it


def alloc(context, key, size, plain=False):
    if plain:
        owner = ctypes.create_string_buffer(size)
        memory[key] = ctypes.addressof(owner), size, owner
        return
    address = ctypes.c_void_p()
    check(lib.commd_alloc(context.handle, size, ctypes.byref(address)))
    memory[key] = address.value, size, None


def free(key):
    address, _, owner = memory.pop(key)
    if owner is None:
        check(lib.commd_free(address))


def paint(key, byte):
    address, size, _ = memory[key]
    ctypes.memset(address, byte, size)


def looks(key, byte):
    """Are all bytes like that?"""
    address, size, _ = memory[key]
    return ctypes.string_at(address, size) == bytes([byte]) * size


def vector(count, scale, add):
    period = array.array("I", [(i * 3 * scale + add) & 0xFFFFFFFF for i in range(PERIOD)]).tobytes()
    return (period * (count // PERIOD + 1))[: count * 4]


def all_reduce(group, send, recv, count, at=EDGE, turn=0, timeout_ms=0):
    """Puts the input at byte @at of memory @send, and checks what comes to that place of @recv."""
    mine = vector(count, 1, group.rank * 5 + turn)
    ranks = group.size
    want = vector(count, ranks, ranks * (ranks - 1) // 2 * 5 + ranks * turn)
    for key in {send, recv}:
        paint(key, CANVAS)
    ctypes.memmove(memory[send][0] + at, mine, len(mine))
    group.run(
        "all_reduce", send=memory[send][0] + at, recv=memory[recv][0] + at, count=count,
        dtype=DTYPES.index("u32"), timeout_ms=timeout_ms,
    )  # fmt: skip
    for key, data in ((send, mine), (recv, want)):
        address, size, _ = memory[key]
        if key == send and send == recv:
            continue
        got = ctypes.string_at(address, size)
        if got[at : at + len(data)] != data:
            first = next(i for i in range(len(data)) if got[at + i] != data[i])
            raise AssertionError(f"{key}: wrong from byte {first} of {len(data)} on")
        if got[:at].strip(bytes([CANVAS])) or got[at + len(data) :].strip(bytes([CANVAS])):
            raise AssertionError(f"{key}: something was written beside the vector")
