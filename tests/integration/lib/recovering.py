"""A job of one kind of operation that verifies each result, for rank.py: when somebody dies it goes
on in the group's next epoch, and does the operation again there.

Element i of what rank r puts in is a number of r; each result is compared whole.
"""

import array
import time

import registered
from commd_client import REDOPS, CommdError, finish
from verified import U8, U32, now, same

SUM = REDOPS.index("sum")
KEY = "recovering"  # of registered memory
REASON = "an operation has failed"


def block(count, number):
    return bytearray(array.array("I", [number]) * count)


def blocks(count, numbers):
    return bytearray().join(block(count, number) for number in numbers)


def run_all(starts, failing=lambda: None):
    """Works at the same time. Their buffers are used until the last has ended."""
    works, failed = [], None
    for steps, step in ((starts, lambda start: works.append(start())), (works, finish)):
        for each in steps:
            try:
                step(each)
            except CommdError as error:
                failed = failed or error
                failing()
    if failed:
        raise failed


class Kind:
    """Each method is an operation of @count elements, or of blocks of so many."""

    def __init__(self, group, count, dtype=U32):
        self.group, self.count, self.dtype = group, count, dtype

    def run(self, coll, recv, want, **arguments):
        if recv is not None:
            arguments["recv"] = recv
        self.group.run(coll, count=self.count, dtype=self.dtype, **arguments)
        if want is not None:
            same(recv, want, coll)

    def ranks(self, first=1):
        return range(first, first + self.group.size)

    def all_reduce(self):
        buffer = block(self.count, self.group.rank + 1)
        self.run("all_reduce", buffer, block(self.count, sum(self.ranks())), send=buffer, redop=SUM)

    def reduce(self):
        root = self.group.rank == 0
        buffer = block(self.count, self.group.rank + 1)
        want = block(self.count, sum(self.ranks())) if root else None
        self.run("reduce", buffer, want, send=buffer, redop=SUM)

    def broadcast(self):
        buffer = block(self.count, 7 if self.group.rank == 0 else 0)
        self.run("broadcast", buffer, block(self.count, 7), send=buffer)

    def all_gather(self):
        send = block(self.count, self.group.rank + 1)
        recv = block(self.count * self.group.size, 0)
        self.run("all_gather", recv, blocks(self.count, self.ranks()), send=send)

    def reduce_scatter(self):
        rank, size = self.group.rank, self.group.size
        send = blocks(self.count, self.ranks(rank + 1))
        want = block(self.count, sum(self.ranks()) + size * rank)
        self.run("reduce_scatter", block(self.count, 0), want, send=send, redop=SUM)

    def all_to_all(self):
        rank, size = self.group.rank, self.group.size
        send = blocks(self.count, (100 * rank + to for to in range(size)))
        want = blocks(self.count, (100 * other + rank for other in range(size)))
        self.run("all_to_all", block(self.count * size, 0), want, send=send)

    def gather(self):
        root = self.group.rank == 0
        recv = block(self.count * self.group.size if root else 0, 0)
        want = blocks(self.count, self.ranks()) if root else None
        self.run("gather", recv, want, send=block(self.count, self.group.rank + 1))

    def scatter(self):
        rank = self.group.rank
        send = blocks(self.count, self.ranks()) if rank == 0 else bytearray()
        self.run("scatter", block(self.count, 0), block(self.count, rank + 1), send=send)

    def barrier(self):
        self.group.run("barrier")

    def registered(self):
        registered.all_reduce(self.group, KEY, KEY, self.count)

    def works(self):
        """Three operations on the way at once, and two in one submission."""
        rank, size = self.group.rank, self.group.size
        buffers = [block(self.count, rank + 1 + number) for number in range(5)]
        ops = [
            dict(send=buffer, recv=buffer, count=self.count, dtype=self.dtype, redop=SUM)
            for buffer in buffers
        ]
        batch = [self.group.op("all_reduce", **op) for op in ops[3:]]
        starts = [lambda op=op: self.group.start("all_reduce", **op) for op in ops[:3]]
        run_all([*starts, lambda: self.group.start_batch(batch)])
        for number, buffer in enumerate(buffers):
            want = sum(self.ranks()) + number * size
            same(buffer, block(self.count, want), f"all_reduce {number}")

    def messages(self):
        """Around the ring; buffers are used until both have ended."""
        rank, size, nbytes = self.group.rank, self.group.size, 4 * self.count
        send, recv, before = block(self.count, rank + 1), bytearray(nbytes), (rank - 1) % size
        ring = dict(count=nbytes, dtype=U8, tag=1)
        run_all([
            lambda: self.group.start("recv", recv=recv, peer=before, **ring),
            lambda: self.group.start("send", send=send, peer=(rank + 1) % size, **ring),
        ], lambda: self.group.abort(REASON))  # the others may wait for a message of this rank
        same(recv, block(self.count, before + 1), "message")


def numbers_of(group):
    group.rank, group.size = group.rank_and_size()
    return group


def first_error(act):
    try:
        while True:
            act()
    except CommdError as error:
        return error.fields


def work(context, group, kind, count, left, options, tell):
    """Operations until one fails, which is told at once; then those who are left go on, until they
    are @left. Says when what was, and why: an error for each time that they had to go on."""
    if kind == "registered":
        if KEY in registered.memory:
            registered.free(KEY)
        registered.alloc(context, KEY, 4 * count + 2 * registered.EDGE)
    act = getattr(Kind(group, count), kind)
    act()
    tell({"started": True})
    errors = [first_error(act)]
    told, again = now(), None
    tell({"told": True})
    while not again:
        group.recover(**options)
        act = getattr(Kind(numbers_of(group), count), kind)
        if group.size > left:  # who is missing then dies just now
            errors.append(first_error(act))
            continue
        try:
            act()
            again = now()
        except CommdError as error:
            errors.append(error.fields)
    return dict(told=told, again=again, errors=errors, rank=group.rank, size=group.size,
                number=group.epoch())  # fmt: skip


def come(context, group, kind, count):
    """A new process has its seat: it takes part in the operation that is done again."""
    if kind == "registered":
        registered.alloc(context, KEY, 4 * count + 2 * registered.EDGE)
    getattr(Kind(numbers_of(group), count), kind)()
    return dict(again=now(), rank=group.rank, size=group.size, number=group.epoch())


def joining(context, name, rank, size):
    """Joins until nobody of the group has died: then its first operation is done."""
    errors = []
    while True:
        group = None
        try:
            group = context.join(name, rank, size)
            Kind(numbers_of(group), 1000).all_reduce()
            return dict(again=now(), errors=errors)
        except CommdError as error:
            errors.append(error.fields)
        finally:
            if group:
                group.leave()


def reconfigure(group, times, pause=0.02):
    """Of a group that nothing has happened to: how long each change of epoch took, in ms."""
    took = []
    for _ in range(times):
        group.run("barrier")
        time.sleep(pause)
        group.run("barrier")
        begin = now()
        group.recover()
        took.append((now() - begin) * 1000)
        Kind(numbers_of(group), 16).all_reduce()
    return took
