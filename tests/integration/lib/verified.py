"""A job that verifies every result bit by bit, for rank.py, while others kill what serves it.

data() is a group at work: all_reduce, broadcast, all_gather and messages of several sizes, in
turns. It does not need commd, and keeps when each operation began and ended. controls() is all that
does need it: a connection, a join, a subgroup, registered memory, and leaving again, over and over.
Both go on until a file exists. Rank 0 looks and tells the others, so all end in the same turn.

COMMD_FAULTS_FAKE names a fault of the job itself, which whoever judges the job must find: a wrong
"bit", a "hang", an "error" that nobody promised, an error without a "name", a "file" or a "process"
that is left.
"""

import array
import functools
import itertools
import os
import subprocess
import time

import registered
from commd_client import DTYPES, CommdError, finish

FAKE = os.environ.get("COMMD_FAULTS_FAKE", "")
FAKE_TURN = 5
COUNTS = [2, 1000, 8195, 65536, 262144]  # elements of an all_reduce
PACE = 0.01  # seconds between two rounds of controls(): a job that joins often has work besides
U8, U32 = DTYPES.index("u8"), DTYPES.index("u32")

vector = functools.lru_cache(maxsize=256)(registered.vector)


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def same(got, want, what):
    if got != want:
        at = next(i for i in range(len(want)) if got[i] != want[i])
        raise AssertionError(f"{what}: byte {at} of {len(want)} is wrong")


def fake(group, turn):
    if group.rank or turn != FAKE_TURN:
        return
    home = os.path.dirname(os.environ["COMMD_SOCKET"])
    if FAKE == "hang":
        time.sleep(3600)
    elif FAKE == "error":
        group.run("all_reduce", count=-1)
    elif FAKE == "file":
        open(os.path.join(home, "left"), "w").close()
    elif FAKE == "process":
        subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         start_new_session=True)  # fmt: skip


class Data:
    """One rank of the group at work. @times: when each operation began, and when it ended."""

    def __init__(self, group, stop, messages=True):
        self.group, self.stop, self.messages = group, stop, messages
        self.times = array.array("d")

    def run(self, coll, **arguments):
        begin = now()
        self.group.run(coll, **arguments)
        self.times.extend((begin, now()))

    def reduce(self, turn, count):
        rank, size = self.group.rank, self.group.size
        send = bytearray(vector(count, 1, rank * 5 + turn % 16))
        recv = bytearray(len(send)) if turn % 2 else send
        want = vector(count, size, size * (size - 1) // 2 * 5 + size * (turn % 16))
        self.run("all_reduce", send=send, recv=recv, count=count, dtype=U32)
        if FAKE == "bit" and turn == FAKE_TURN and rank == 0:
            recv[len(recv) // 2] ^= 1
        same(recv, want, f"all_reduce of {count} elements in turn {turn}")

    def broadcast(self, turn, count):
        root, want = turn % self.group.size, vector(count, 1, turn % 16)
        recv = bytearray(want) if root == self.group.rank else bytearray(len(want))
        self.run("broadcast", recv=recv, count=count, dtype=U32, root=root)
        same(recv, want, f"broadcast from rank {root} in turn {turn}")

    def gather(self, turn, count):
        rows = [vector(count, 1, rank * 7 + turn % 16) for rank in range(self.group.size)]
        send, recv = bytearray(rows[self.group.rank]), bytearray(4 * count * len(rows))
        self.run("all_gather", send=send, recv=recv, count=count, dtype=U32)
        same(recv, b"".join(rows), f"all_gather in turn {turn}")

    def ring(self, turn, nbytes):
        """A message to the next rank, one from the rank before."""
        rank, size = self.group.rank, self.group.size
        before = (rank - 1) % size
        send = bytearray(vector(nbytes // 4, 1, rank * 3 + turn % 16))
        recv = bytearray(nbytes)
        begin = now()
        works = [
            self.group.start("recv", recv=recv, count=nbytes, dtype=U8, peer=before, tag=1),
            self.group.start("send", send=send, count=nbytes, dtype=U8, peer=(rank + 1) % size,
                             tag=1),
        ]  # fmt: skip
        failed = None
        for work in works:  # buffers are used until both have ended
            try:
                finish(work)
            except CommdError as error:
                failed = failed or error
        if failed:
            raise failed
        self.times.extend((begin, now()))
        same(recv, vector(nbytes // 4, 1, before * 3 + turn % 16), f"message in turn {turn}")

    def goes_on(self, turn):
        word = bytearray([turn % 251, os.path.exists(self.stop)] if not self.group.rank else 2)
        self.run("broadcast", recv=word, count=2, dtype=U8, root=0)
        same(word[:1], bytes([turn % 251]), f"the number of turn {turn}")
        return not word[1]

    def turn(self, turn):
        fake(self.group, turn)
        for count in COUNTS:
            self.reduce(turn, count)
        self.broadcast(turn, 10000)
        self.gather(turn, 3001)
        for nbytes in (8, 5000, 100000) if self.messages else ():
            self.ring(turn, nbytes)


def data(group, stop, times, messages):
    """Until @stop exists; @times: the file for what was measured. Returns the number of turns.

    Without @messages where a rank dies: messages between others go on then, so that who has not
    seen the death yet would wait for one from a rank that has, and has stopped."""
    job = Data(group, stop, messages)
    try:
        for turn in itertools.count():
            if not job.goes_on(turn):
                return turn
            job.turn(turn)
    except CommdError as error:
        if FAKE == "name":
            error.fields["node"] = ""
        raise
    finally:
        with open(times, "wb") as file:
            job.times.tofile(file)


def controls(connect, name, rank, size, stop, tell):
    """Returns the number of rounds, and tells of each when it began and when all had joined."""
    for number in itertools.count():
        begin = now()
        context = connect()
        group = context.join(f"{name}.{number}", rank, size)
        group.rank, group.size = rank, size
        joined = now()
        part = group.split(0, size - rank)
        part.rank, part.size = part.rank_and_size()
        registered.alloc(context, name, 1 << 18)
        registered.all_reduce(group, name, name, 50000, turn=number % 100)
        word = Data(part, stop)
        word.reduce(number, 1000)
        goes_on = Data(group, stop).goes_on(number)
        part.leave()
        group.leave()
        registered.free(name)
        context.disconnect()
        if not goes_on:
            return number
        tell({"round": number, "begin": begin, "joined": joined})
        time.sleep(PACE)
