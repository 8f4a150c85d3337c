#!/usr/bin/env python3
"""A rank of a good tenant, for cluster.Rank: runs whatever a job runs, checks every result, keeps
the times.

    tenant.py UID

Commands as in rank.py: "connect", "join", "leave", "work", "subgroup". "work" goes on until a given
time, by rank 0's clock: it broadcasts at the beginning of each round whether there is one more. A
round is some timed all_reduce of 8 KB; a stretch of stream.py (random collectives, compared bit by
bit) and of mail; an all_reduce in registered memory; a broadcast and an all_to_all; and, now and
then, a subgroup, and a connection of its own.
"""

import json
import os
import sys
import time

sys.dont_write_bytecode = True
import registered  # noqa: E402
import stream  # noqa: E402
from commd_client import DTYPES, CommdError, Context  # noqa: E402

U32 = DTYPES.index("u32")
TIMED_COUNT, TIMED = 2048, 40  # elements: 8 KB; operations in a round
REGISTERED_BYTES = 512 << 10
PATIENCE_MS = 600000  # of any operation: a hang is an error, a slow machine is not
context = group = None
subgroups = 0


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def connect():
    global context
    context = Context()
    registered.alloc(context, "memory", REGISTERED_BYTES)
    registered.alloc(context, "vector", TIMED_COUNT * 4 + 2 * registered.EDGE, plain=True)
    return context.node()


def enter(name, rank, size):
    made = context.join(name, rank, size, PATIENCE_MS)
    made.rank, made.size = rank, size
    made.set_timeout(PATIENCE_MS)
    return made


def join(name, rank, size):
    global group
    group = enter(name, rank, size)
    return group.nodes()


def leave():
    group.leave()
    context.disconnect()


def timed(turn):
    """Seconds of each all_reduce of 8 KB."""
    times = []
    address = registered.memory["vector"][0] + registered.EDGE
    for i in range(TIMED):
        mine = registered.vector(TIMED_COUNT, 1, group.rank * 5 + turn + i)
        ranks = group.size
        want = registered.vector(
            TIMED_COUNT, ranks, ranks * (ranks - 1) // 2 * 5 + ranks * (turn + i)
        )
        registered.ctypes.memmove(address, mine, len(mine))
        group.run("barrier")
        begin = now()
        group.run("all_reduce", send=address, recv=address, count=TIMED_COUNT, dtype=U32)
        times.append(now() - begin)
        if registered.ctypes.string_at(address, len(want)) != want:
            raise AssertionError(f"all_reduce {i} of round {turn} gave a wrong result")
    return times


def again(more):
    """Rank 0 says whether there is one more round."""
    flag = bytearray([more])
    group.run("broadcast", recv=flag, count=1, dtype=1)
    return flag[0]


def swap(turn):
    """all_to_all: element k of rank r is for rank k."""
    size, rank = group.size, group.rank
    send = bytearray((rank * 16 + k + turn) % 251 for k in range(size))
    recv = bytearray(size)
    group.run("all_to_all", send=send, recv=recv, count=1, dtype=1)
    if recv != bytearray((k * 16 + rank + turn) % 251 for k in range(size)):
        raise AssertionError(f"all_to_all of round {turn}: {recv.hex()}")


def subgroup(turn, name=None):
    """A group made, used and left."""
    global subgroups
    made = enter(name or f"good-{turn}", group.rank, group.size)
    value = bytearray(turn.to_bytes(4, "little"))
    made.run("all_reduce", send=value, recv=value, count=1, dtype=U32)
    made.leave()
    if value != (turn * group.size).to_bytes(4, "little"):
        raise AssertionError(f"subgroup of round {turn}: {value.hex()}")
    subgroups += 1


def alone(turn):
    """A session and a group of its own, as a new process would have them."""
    with_it = Context(timeout_ms=PATIENCE_MS)
    made = with_it.join(f"alone-{group.rank}-{turn}", 0, 1, PATIENCE_MS)
    made.run("barrier")
    made.leave()
    with_it.disconnect()


def work(until, seed, turn, join_names=None):
    """Returns rounds, at least one, subgroups made, and the times. @join_names: of subgroups, not
    new ones."""
    global subgroups
    subgroups, rounds, times = 0, 0, []
    while again(rounds == 0 or now() < until):
        times += timed(turn)
        swap(turn)
        stream.run(group, group.rank, group.size, seed + turn, 6, 100000)
        stream.mail(group, group.rank, group.size, seed + turn, 10, 100000)
        count = (REGISTERED_BYTES - 2 * registered.EDGE) // 4
        registered.all_reduce(group, "memory", "memory", count, turn=turn)
        if rounds % 4 == 0:
            subgroup(turn, join_names and join_names[turn % len(join_names)])
            alone(turn)
        turn += 1
        rounds += 1
    return {"rounds": rounds, "subgroups": subgroups, "times": times}


COMMANDS = {"connect": connect, "join": join, "leave": leave, "work": work, "subgroup": subgroup}


def main():
    uid = int(sys.argv[1])
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": COMMANDS[request.pop("do")](**request)}
        except CommdError as error:
            answer = {"error": error.fields}
        except Exception as error:  # a wrong result
            answer = {"failed": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(dict(answer, at=now())) + "\n")
        sys.stdout.flush()


main()
