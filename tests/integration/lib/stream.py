"""A random stream of collectives that every rank can derive from a seed, with its exact results.

Each rank's data repeat with a prime period, and every rank knows everybody's, so the expected
result of an element-wise reduction is one period, computed in Python's own arithmetic, repeated.
Values are chosen such that every intermediate result is exact in the type; then the order of
additions cannot show, and the comparison is of bits.
"""

import functools
import operator
import random
import struct

from commd_client import COLLS, DTYPE_BYTES, DTYPES, REDOPS, address, counts_array, finish

FORMATS = {
    "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "f16": "e", "f32": "f", "f64": "d", "bool": "B",
}  # fmt: skip
PERIODS = [1, 2, 3, 7, 31, 251]
GUARD = 0xA5  # around every result, must survive

# Whose buffers hold one vector or block, and whose one for each rank; "root": only there.
SENDS_ONE = {"all_reduce", "reduce", "all_gather", "all_gather_v", "gather", "gather_v"}
SENDS_BLOCKS = {"reduce_scatter", "reduce_scatter_v", "all_to_all", "all_to_all_v"}
SENDS_BLOCKS_AT_ROOT = {"scatter", "scatter_v"}
RECVS_BLOCKS = {"all_gather", "all_gather_v", "all_to_all", "all_to_all_v"}
RECVS_BLOCKS_AT_ROOT = {"gather", "gather_v"}
ROOTED = {"broadcast", "reduce", "gather", "gather_v", "scatter", "scatter_v"}
REDUCES = {"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v"}
BITS = {"band": operator.and_, "bor": operator.or_, "bxor": operator.xor}
FLOATS = {"f16", "bf16", "f32", "f64"}


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
        if redop in BITS:
            value = values[0]
            for other in values[1:]:
                value = BITS[redop](value, other)
        elif redop == "premul_sum":
            # not sum(), which begins with a 0: minus nothing stays minus nothing
            value = functools.reduce(operator.add, (v * s for v, s in zip(values, op["scales"])))
        elif redop == "min":
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
        return [
            (float if floating else int)(size * rng.randint(low * limit, limit)) for _ in range(n)
        ]
    if floating:
        limit = max(1, (60 if dtype == "bf16" else 500) // size)
        return [float(rng.randint(-limit, limit)) for _ in range(n)]
    bits = 8 * DTYPE_BYTES[DTYPES.index(dtype)]
    return [wrap(dtype, rng.getrandbits(bits)) for _ in range(n)]


def defined(dtype, redop):
    if redop in BITS or redop == "premul_sum":
        return (dtype in FLOATS) == (redop == "premul_sum")
    return not (dtype == "bool" and redop == "avg")


def draw_op(rng, max_bytes):
    op = {"coll": rng.choice(COLLS + ["all_reduce"] * 3), "dtype": rng.choice(DTYPES)}
    redops = [r for r in REDOPS if defined(op["dtype"], r)]
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


def draw_elements(rng, op, size, n):
    """elements[i][j]: what rank i has for rank j."""
    if not op["coll"].endswith("_v"):
        return [[n] * size for _ in range(size)]
    draw = lambda: rng.choice([0, n // size, rng.randint(0, n // size)])  # noqa: E731
    if op["coll"] in ("all_gather_v", "reduce_scatter_v"):  # all ranks know all counts
        counts = [draw() for _ in range(size)]
        if op["coll"] == "all_gather_v":
            return [[count] * size for count in counts]
        return [counts for _ in range(size)]
    return [[draw() for _ in range(size)] for _ in range(size)]


class Prepared:
    """One operation on one rank: its buffers and what must be in them afterwards."""

    def __init__(self, op, rank, size):
        rng = random.Random(op["seed"])
        dtype, coll, n = op["dtype"], op["coll"], op["count"]
        if coll not in REDUCES:
            op = dict(op, redop="sum")
        op["scales"] = [rng.choice([1, 2, -1]) for _ in range(size)]
        columns = [draw_values(rng, op, size, op["period"]) for _ in range(size)]
        if coll in ("all_to_all", "scatter", "reduce_scatter"):
            n //= size
        self.op, self.n, self.rank = op, n, rank
        self.root = int(op["root"] * size)
        self.elements = draw_elements(rng, op, size, n)
        element = DTYPE_BYTES[DTYPES.index(dtype)]
        is_root = rank == self.root

        send_many = coll in SENDS_BLOCKS or (coll in SENDS_BLOCKS_AT_ROOT and is_root)
        recv_many = coll in RECVS_BLOCKS or (coll in RECVS_BLOCKS_AT_ROOT and is_root)
        self.out, self.into = self.row(rank)
        sends = coll in SENDS_ONE or coll == "broadcast" or send_many
        total = sum(self.out) if send_many else self.out[self.single()]
        self.send = bytearray(tile(dtype, columns[rank], 0, total if sends else 0))
        self.expected = self.result(columns, recv_many)
        self.recv, self.send_at, self.recv_at, self.result_at = None, 0, 0, 0
        if coll == "barrier":
            return
        guard = bytes([GUARD]) * 64
        both = sends and (recv_many or coll not in ROOTED or is_root or coll == "broadcast")
        in_place = both and (op["in_place"] or coll == "broadcast")
        if in_place and send_many and recv_many and coll.endswith("_v"):
            in_place = False
        self.recv_at = self.result_at = 64
        if not in_place:
            self.recv = bytearray(guard + bytes(len(self.expected)) + guard)
            return
        own = 0
        if recv_many and not send_many:
            own = sum(self.into[:rank]) * element
            before, after = bytes(own), bytes(len(self.expected) - own - len(self.send))
            self.recv = bytearray(guard + before + self.send + after + guard)
        else:
            self.recv = bytearray(guard + self.send + guard)
        self.send_at = 64 + own
        if send_many and not recv_many:
            self.recv_at = self.result_at = 64 + sum(self.out[:rank]) * element
        self.send = None  # inside of recv

    def single(self):
        """The column of the only block that a rank sends or gets."""
        return self.root if self.op["coll"] in ROOTED else self.rank

    def row(self, rank):
        return self.elements[rank], [row[rank] for row in self.elements]

    def result(self, columns, recv_many):
        op, coll, dtype, rank = self.op, self.op["coll"], self.op["dtype"], self.rank
        size = len(columns)
        if coll == "barrier" or (coll in ("reduce", "gather", "gather_v") and rank != self.root):
            return b""
        if coll in REDUCES:
            total = reduced(op, columns)
            start = sum(self.out[:rank]) if coll in SENDS_BLOCKS else 0
            return tile(dtype, total, start, self.out[rank])
        if coll == "broadcast":
            return tile(dtype, columns[self.root], 0, self.n)

        def block(source):
            many = coll in SENDS_BLOCKS or coll in SENDS_BLOCKS_AT_ROOT
            start = sum(self.elements[source][:rank]) if many else 0
            return tile(dtype, columns[source], start, self.elements[source][rank])

        return b"".join(block(k) for k in range(size)) if recv_many else block(self.root)

    def counts(self):
        """As the API wants them."""
        coll = self.op["coll"]
        if not coll.endswith("_v"):
            return {}
        out = self.out[self.root :] if coll == "gather_v" else self.out
        into = self.into[self.root :] if coll == "scatter_v" else self.into
        return {"send_counts": counts_array(out), "recv_counts": counts_array(into)}

    def arguments(self):
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
            "scale": self.op["scales"][self.rank],
            **self.counts(),
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


def mail(group, rank, size, seed, messages, max_bytes):
    """Messages between random ranks with random tags, started in a random order of each rank's own:
    all receives name their source, those of odd ranks from any. Contents tell whose they are."""
    rng = random.Random(seed)
    plan = []
    for number in range(messages):
        source, dest, tag = rng.randrange(size), rng.randrange(size), rng.randrange(4)
        length = rng.choice([0, 8, 100, 5000, 70000, max_bytes])
        plan.append((number, source, dest, tag, rng.randrange(length + 1) if length else 0))

    def content(number, length):
        return random.Random(seed * 65537 + number).randbytes(97) * (length // 97 + 1)

    sends = [m for m in plan if m[1] == rank]
    recvs = [m for m in plan if m[2] == rank]
    todo = ["send"] * len(sends) + ["recv"] * len(recvs)
    own = random.Random(seed + rank)
    own.shuffle(todo)
    own.shuffle(recvs)
    works, in_order = [], {}
    for _, source, _, tag, _ in recvs:
        in_order.setdefault((source, tag), [])
    for what in todo:
        if what == "send":
            number, _, dest, tag, length = sends.pop(0)
            buffer = bytearray(content(number, length)[:length])
            work = group.start("send", send=buffer, count=length, dtype=1, peer=dest, tag=tag)
            works.append((work, buffer, None))
        else:
            _, source, _, tag, _ = recvs.pop(0)
            buffer = bytearray(max_bytes)
            peer = -1 if rank % 2 else source
            work = group.start("recv", recv=buffer, count=max_bytes, dtype=1, peer=peer, tag=tag)
            works.append((work, buffer, (peer, tag)))
    for work, buffer, receive in works:
        source, tag, length = finish(work)
        if receive is not None:
            in_order[source, tag].append(bytes(buffer[:length]))
    for (source, tag), got in in_order.items():
        want = [content(m[0], m[4])[: m[4]] for m in plan if m[1:4] == (source, rank, tag)]
        if got != want:
            raise AssertionError(
                f"rank {rank} from {source}, tag {tag}: "
                f"{[len(x) for x in got]} instead of {[len(x) for x in want]}"
            )
