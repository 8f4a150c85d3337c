"""The input of an operation that fails because a rank dies, for rank.py: each kind of collective,
with an output of its own and in place. What is not the output too has to be as it was."""

from commd_client import DTYPES, REDOPS, CommdError, address, counts_array

ROOT = 0
WIDE_SEND = ("reduce_scatter", "scatter", "all_to_all")
WIDE_RECV = ("all_gather", "gather", "all_to_all")
PATTERN = bytes((7 * i + 3) % 251 for i in range(251))


def filled(rank, count):
    return bytearray((PATTERN[rank:] + PATTERN * (count // 251 + 2))[:count])


def own(kind, rank, size, count, in_place):
    """Where in the buffer it sends from and receives at (None: in another one); its input (start,
    length) there, and those parts of it that are not output."""
    wide_send, wide_recv, block = kind in WIDE_SEND, kind in WIDE_RECV, (rank * count, count)
    whole = (0, count * (size if wide_send or wide_recv else 1))
    if kind == "broadcast":
        return 0, 0, whole, [whole] if rank == ROOT else []
    if not in_place or (kind in ("gather", "scatter") and rank != ROOT):
        sent = (0, count * (size if wide_send else 1))
        return 0, None, sent, [sent]
    send = block[0] if wide_recv and not wide_send else 0
    recv = block[0] if wide_send and not wide_recv else 0
    others = [(0, block[0]), (block[0] + count, whole[1] - block[0] - count)]
    kept = {"all_reduce": [], "all_to_all": [], "reduce": [] if rank == ROOT else [whole],
            "all_gather": [block], "gather": [block], "scatter": [whole],
            "reduce_scatter": others}  # fmt: skip
    return send, recv, whole if wide_send or not wide_recv else block, kept[kind]


def run(group, coll, count, in_place, absent, tell):
    """Until a rank is lost. @absent: one that never came, so all of the input is kept. Returns what
    was changed of the input and should not be; None: nothing."""
    rank, size, kind = group.rank, group.size, coll.replace("_v", "")
    send, recv, sent, kept = own(kind, rank, size, count, in_place)
    before, other = filled(rank, count * size), bytearray(count * size)
    buffer, counts = bytearray(before), counts_array([count] * size)
    one = counts_array([count])
    highest = REDOPS.index("max")
    lists = {"all_gather_v": (None, counts), "reduce_scatter_v": (counts, None),
             "all_to_all_v": (counts, counts), "gather_v": (one, counts),
             "scatter_v": (counts, one)}.get(coll, (None, None))  # fmt: skip
    arguments = dict(send=address(buffer) + send, count=count, dtype=DTYPES.index("u8"), root=ROOT,
                     recv=address(other if recv is None else buffer) + (recv or 0),
                     redop=highest, send_counts=lists[0], recv_counts=lists[1])  # fmt: skip
    tell({"started": True})
    while True:
        buffer[:] = before
        try:
            group.run(coll, **arguments)
        except CommdError as error:
            for at, n in [sent] if absent and (kind != "broadcast" or rank == ROOT) else kept:
                if buffer[at : at + n] != before[at : at + n]:
                    return f"bytes {at} to {at + n}: {error}"
            return None
