"""How long torch's gloo takes to make a group of N processes anew over a new prefix of one store:

    made again     destroy_process_group() and init_process_group()
    new_group()    a group of all ranks beside the old one, as torch documents it
    backend alone  ProcessGroupGloo(store, rank, size): what both do below, and no more

Only the first ends the old group, too. gloo_ranks.py N TIMES prints ms, as JSON: of each time the
longest of all ranks. It needs torch, and is run by rows.py."""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PAUSE = 0.02
LIMIT = timedelta(seconds=30)


def init(store, number, size, turn):
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"init{turn}", store), rank=number, world_size=size,
        timeout=LIMIT,
    )  # fmt: skip


def made_again(store, number, size, turn):
    dist.destroy_process_group()
    init(store, number, size, turn)
    return dist.group.WORLD


def new_group(store, number, size, turn):
    return dist.new_group(timeout=LIMIT)


def backend_alone(store, number, size, turn):
    return dist.ProcessGroupGloo(dist.PrefixStore(f"alone{turn}", store), number, size, LIMIT)


WAYS = {
    "gloo: made again": made_again,
    "gloo: new_group()": new_group,
    "gloo: its backend alone": backend_alone,
}


def measured(make, store, number, size, times):
    took, ones, kept = [], torch.ones(4), []
    for turn in range(times):
        dist.barrier()
        time.sleep(PAUSE)
        dist.barrier()
        begin = time.monotonic()
        kept.append(make(store, number, size, turn))
        took.append((time.monotonic() - begin) * 1000)
        kept[-1].allreduce([ones.fill_(1)]).wait()
        assert ones[0].item() == size
    return took


def rank(number, size, times, port, queue):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, is_master=False, timeout=timedelta(seconds=60))
    init(store, number, size, -1)
    queue.put({what: measured(make, store, number, size, times) for what, make in WAYS.items()})
    dist.barrier()


def main():
    size, times = int(sys.argv[1]), int(sys.argv[2])
    context = mp.get_context("spawn")  # the store has threads: a fork of it may hang
    server = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    queue = context.Queue()
    ranks = [
        context.Process(target=rank, args=(n, size, times, server.port, queue), daemon=True)
        for n in range(size)
    ]
    for one in ranks:
        one.start()
    found = [queue.get(timeout=100) for _ in ranks]
    for one in ranks:
        one.join(20)
    print(json.dumps({what: list(map(max, zip(*(one[what] for one in found)))) for what in WAYS}))


if __name__ == "__main__":
    main()
