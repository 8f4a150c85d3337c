"""A random stream of collectives that every rank can derive from a seed, with its exact results.

Each rank's data repeat with a prime period, and every rank knows everybody's, so the expected
result of an element-wise reduction is one period, computed in Python's own arithmetic, repeated.
Values are chosen such that every intermediate result is exact in the type; then the order of
additions cannot show, and the comparison is of bits.
"""

import random
import struct

from commd_client import COLLS, DTYPE_BYTES, DTYPES, REDOPS, finish

FORMATS = {
    "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "f16": "e", "f32": "f", "f64": "d", "bool": "B",
}  # fmt: skip
PERIODS = [1, 2, 3, 7, 31, 251]
GUARD = 0xA5  # around every result, must survive


def pack(dtype, values):
    if dtype == "bf16":  # the upper half of an f32; the values are exact in it
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)


def wrap(dtype, value):
    """As the type's own arithmetic would have it."""
    if dtype[0] not in "iu":
        return value
    bits = 8 * DTYPE_BYTES[DTYPES.index(dtype)]
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype[0] == "i" and value >> (bits - 1) else value


def reduced(op, columns):
    """One period of the result; columns[r] is rank r's period."""
    dtype, redop = op["dtype"], op["redop"]
    result = []
    for values in zip(*columns):
        if redop == "min":
            value = min(values)
        elif redop == "max":
            value = max(values)
        elif redop == "prod":
            value = 1
            for factor in values:
                value *= factor
        else:
            value = sum(values)
            if redop == "avg":
                value = value / len(values) if dtype[0] not in "iu" else int(value / len(values))
        if dtype == "bool":
            value = int(bool(value))
        result.append(wrap(dtype, value))
    return result


def draw_values(rng, op, size, n):
    """n values of one rank."""
    dtype, redop = op["dtype"], op["redop"]
    if dtype == "bool":
        return [rng.randint(0, 1) for _ in range(n)]
    floating = dtype in ("f16", "bf16", "f32", "f64")
    low = 0 if dtype[0] == "u" else -1
    if redop == "prod":  # wraps around in integers; powers of two in floats
        if floating:
            return [rng.choice([-2.0, -1.0, 0.5, 1.0, 2.0]) for _ in range(n)]
        return [rng.randint(low * 100, 100) for _ in range(n)]
    if redop == "avg":  # multiples of the size, so that the average is exact
        limit = max(1, 100 // size // size)
        return [(float if floating else int)(size * rng.randint(low * limit, limit)) for _ in range(n)]
    if floating:
        limit = max(1, (120 if dtype == "bf16" else 1000) // size)
        return [float(rng.randint(-limit, limit)) for _ in range(n)]
    bits = 8 * DTYPE_BYTES[DTYPES.index(dtype)]
    return [wrap(dtype, rng.getrandbits(bits)) for _ in range(n)]


def draw_op(rng, max_bytes):
    op = {"coll": rng.choice(COLLS + ["all_reduce"] * 3), "dtype": rng.choice(DTYPES)}
    redops = [r for r in REDOPS if not (op["dtype"] == "bool" and r == "avg")]
    op["redop"] = rng.choice(redops)
    # every order of magnitude equally often, and the ends of chunks
    limit = max(1, max_bytes // DTYPE_BYTES[DTYPES.index(op["dtype"])])
    count = int(limit ** rng.random())
    if rng.random() < 0.2:
        count = max(0, (1 << count.bit_length()) + rng.randint(-1, 1))
    op["count"] = 0 if rng.random() < 0.02 else min(count, limit)
    op["root"] = rng.random()
    op["in_place"] = rng.random() < 0.5
    op["async"] = rng.random() < 0.3
    op["period"] = rng.choice(PERIODS)
    op["seed"] = rng.getrandbits(48)
    return op


def tile(dtype, period, start, count):
    """count elements of the endless repetition of @period, from element @start."""
    size = DTYPE_BYTES[DTYPES.index(dtype)]
    start %= len(period)
    once = pack(dtype, period)
    whole = once * (count // len(period) + 2)
    return whole[start * size : (start + count) * size]


class Prepared:
    """One operation on one rank: its buffers and what must be in them afterwards."""

    def __init__(self, op, rank, size):
        rng = random.Random(op["seed"])
        dtype, coll, n = op["dtype"], op["coll"], op["count"]
        if coll not in ("all_reduce", "reduce_scatter"):
            op = dict(op, redop="sum")
        columns = [draw_values(rng, op, size, op["period"]) for _ in range(size)]
        self.op, self.n = op, n
        self.root = int(op["root"] * size)
        mine = columns[rank]
        total = reduced(op, columns) if coll in ("all_reduce", "reduce_scatter") else None
        element = DTYPE_BYTES[DTYPES.index(dtype)]
        self.send_at = self.recv_at = 0
        if coll == "barrier":
            self.send, self.recv, self.expected = None, bytearray(), b""
        elif coll == "all_reduce":
            self.send = bytearray(tile(dtype, mine, 0, n))
            self.expected = tile(dtype, total, 0, n)
        elif coll == "broadcast":
            self.send = bytearray(tile(dtype, mine, 0, n))
            self.expected = tile(dtype, columns[self.root], 0, n)
        elif coll == "all_gather":
            self.send = bytearray(tile(dtype, mine, 0, n))
            self.expected = b"".join(tile(dtype, column, 0, n) for column in columns)
        else:
            self.send = bytearray(tile(dtype, mine, 0, n * size))
            self.expected = tile(dtype, total, rank * n, n)
        if coll == "barrier":
            return
        in_place = op["in_place"] or coll == "broadcast"
        guard = bytes([GUARD]) * 64
        if not in_place:
            self.recv = bytearray(guard + bytes(len(self.expected)) + guard)
            self.recv_at = 64
            self.result_at = 64
            return
        if coll == "all_gather":
            blank = bytes(n * element)
            before, after = blank * rank, blank * (size - 1 - rank)
            self.recv = bytearray(guard + before + self.send + after + guard)
            self.send_at = 64 + rank * n * element
        else:
            self.recv = bytearray(guard + self.send + guard)
            self.send_at = 64
        self.recv_at = self.result_at = 64
        if coll == "reduce_scatter":
            self.recv_at = self.result_at = 64 + rank * n * element
        self.send = None  # inside of recv

    def arguments(self):
        from commd_client import address

        if self.op["coll"] == "barrier":
            return {}
        base = address(self.recv)
        send = base + self.send_at if self.send is None else address(self.send)
        return {
            "send": None if self.op["coll"] == "broadcast" else send,
            "recv": base + self.recv_at,
            "count": self.n,
            "dtype": DTYPES.index(self.op["dtype"]),
            "redop": REDOPS.index(self.op["redop"]),
            "root": self.root,
        }

    def check(self, number):
        if self.op["coll"] == "barrier":
            return
        what = {k: v for k, v in self.op.items() if k != "seed"}
        end = self.result_at + len(self.expected)
        got = self.recv[self.result_at : end]
        if got != self.expected:
            at = next(i for i in range(len(got)) if got[i] != self.expected[i])
            raise AssertionError(
                f"operation {number} {what}: byte {at} of {len(got)} is {got[at:at + 8].hex()}, "
                f"expected {self.expected[at:at + 8].hex()}"
            )
        guards = self.recv[:64] + self.recv[-64:]
        if guards != bytes([GUARD]) * 128:
            raise AssertionError(f"operation {number} {what}: wrote outside of its buffer")


def run(group, rank, size, seed, operations, max_bytes):
    """Runs the stream. Up to 8 asynchronous operations are under way at a time."""
    rng = random.Random(seed)
    pending = []

    def drain():
        for number, prepared, work in pending:
            finish(work)
            prepared.check(number)
        pending.clear()

    for number in range(operations):
        op = draw_op(rng, max_bytes)
        prepared = Prepared(op, rank, size)
        if op["async"]:
            pending.append((number, prepared, group.start(op["coll"], **prepared.arguments())))
            if len(pending) == 8:
                drain()
        else:
            drain()
            group.run(op["coll"], **prepared.arguments())
            prepared.check(number)
    drain()
