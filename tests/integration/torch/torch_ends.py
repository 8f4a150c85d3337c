#!/usr/bin/env python3
"""How programs with backend="commd" end, and what the others are told.

    torch_ends.py SOCKET [SOCKET]    the commds of one node or two

Each scenario forks its ranks from this process, which has torch loaded but is connected to
nothing; they end as Python programs do, through the interpreter's exit. Checked are exit status,
output and, where a rank dies, the error of the others. Prints "torch_ends: N scenarios passed".
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT = 300  # s for a scenario; they take less than one


def init(folder, rank, size, **arguments):
    arguments.setdefault("backend", "commd")
    arguments.setdefault("timeout", timedelta(seconds=LIMIT))
    dist.init_process_group(
        init_method=f"file://{folder}/store", rank=rank, world_size=size, **arguments
    )
    t = torch.ones(1000)
    dist.all_reduce(t)
    assert t[0].item() == size
    tell(folder, rank, "is in")


def all_in(folder, size):
    """Who breaks the group waits for this: the first operation may still be under way elsewhere."""
    for rank in range(size):
        wait_for(folder, rank, "is in")


def tell(folder, rank, name):
    with open(f"{folder}/{name}.{rank}", "w"):
        pass


def wait_for(folder, rank, name):
    while not os.path.exists(f"{folder}/{name}.{rank}"):
        time.sleep(0.001)


# ---- scenarios: (rank, size, folder); the outcome of each rank is in EXPECTED ----------------


def without_destroy(rank, size, folder):
    init(folder, rank, size)
    group = dist.new_group()
    dist.all_reduce(torch.ones(10), group=group)


def works_in_flight(rank, size, folder):
    init(folder, rank, size)
    for i in range(50):
        dist.all_reduce(torch.ones(10000), async_op=True)
    dist.isend(torch.ones(100000), (rank + 1) % size)


def receive_pending(rank, size, folder):
    init(folder, rank, size)
    work = dist.irecv(torch.ones(10), (rank + 1) % size, tag=3)
    work.get_future().then(lambda future: print("a callback at exit"))


def callbacks_at_exit(rank, size, folder):
    """Some run, some are queued, some operations are not done when the interpreter ends."""
    init(folder, rank, size)
    done = []
    for i in range(100):
        work = dist.all_reduce(torch.ones(10000), async_op=True)
        work.get_future().then(lambda future: done.append(future.value()[0].sum().item()))
    while not done:
        time.sleep(0.001)


def destroyed_at_exit(rank, size, folder):
    """The last reference to everything goes with the interpreter's modules."""
    init(folder, rank, size)
    sys.modules["keep"] = [dist.group.WORLD, dist.all_reduce(torch.ones(10), async_op=True)]


def exit_in_a_fork(rank, size, folder):
    """A forked child that ends as programs do leaves the group alone."""
    init(folder, rank, size)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        dist.destroy_process_group()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t[0].item() == size
    dist.destroy_process_group()


def killed(rank, size, folder):
    """The others hear at once who it was, blocking, waiting, and in later calls."""
    init(folder, rank, size)
    if rank == 1:
        tell(folder, rank, str(os.getpid()))
        tell(folder, rank, "here")
        time.sleep(1000)
    wait_for(folder, 1, "here")
    pid = [name.split(".")[0] for name in os.listdir(folder) if name.endswith(".1")]
    pid = next(name for name in pid if name.isdigit())
    work = dist.all_reduce(torch.ones(10), async_op=True)
    tell(folder, rank, "waits")
    for call in (work.wait, lambda: dist.all_reduce(torch.ones(10)), lambda: dist.barrier()):
        try:
            call()
            raise AssertionError("nothing was raised")
        except dist.DistBackendError as error:
            text = str(error)
            assert "rank 1" in text and pid in text and text.startswith("commd: "), text
    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    try:
        future.wait()
        raise AssertionError("nothing was raised by a future")
    except dist.DistBackendError as error:
        assert "rank 1" in str(error), str(error)
    dist.destroy_process_group()


def interrupt_call(name):
    """SIGINT for the main thread once it is in the function @name."""
    main = threading.main_thread().ident
    while True:
        frame = sys._current_frames()[main]
        if frame.f_code.co_name == name:
            return os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)


def interrupted(rank, size, folder):
    """Ctrl-C ends a blocking call."""
    init(folder, rank, size)
    if rank != 0:
        return wait_for(folder, 0, "was interrupted")
    all_in(folder, size)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt_call, args=("all_reduce",))
    thread.start()
    try:
        dist.all_reduce(torch.ones(10))
        raise AssertionError("nothing was raised")
    except KeyboardInterrupt:
        tell(folder, rank, "was interrupted")
    thread.join()
    try:
        dist.all_reduce(torch.ones(10))
        raise AssertionError("nothing was raised")
    except dist.DistBackendError as error:  # by whom, and in what
        assert "rank 0" in str(error) or "all_reduce" in str(error), str(error)


def interrupted_wait(rank, size, folder):
    """Ctrl-C ends the wait for an operation that was started, and is raised once."""
    init(folder, rank, size)
    if rank != 0:
        return wait_for(folder, 0, "was interrupted")
    all_in(folder, size)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    for _ in range(2):
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            work.wait()
            raise AssertionError("nothing was raised")
        except KeyboardInterrupt:
            timer.join()
    time.sleep(0.3)
    tell(folder, rank, "was interrupted")


def late(rank, size, folder):
    """A limit names who has not come, and what."""
    init(folder, rank, size)
    group = dist.new_group(timeout=timedelta(milliseconds=1500))
    if rank != 1:
        begin = time.monotonic()
        try:
            dist.barrier(group=group)
            raise AssertionError("nothing was raised")
        except dist.DistBackendError as error:
            text = str(error)
            assert "barrier" in text and "rank 1" in text and " timeout " in text, text
        assert time.monotonic() - begin >= 1.49
        tell(folder, rank, "is late")
    else:
        for other in range(size):
            if other != 1:
                wait_for(folder, other, "is late")
    dist.barrier()
    dist.destroy_process_group()


def limit_of_the_environment(rank, size, folder):
    """$COMMD_TIMEOUT is the limit of groups for which the program names none."""
    os.environ["COMMD_TIMEOUT"] = "301.5"

    def limit(group):
        return group._get_backend(torch.device("cpu")).options._timeout

    init(folder, rank, size, timeout=None)
    assert limit(dist.group.WORLD) == timedelta(seconds=301.5), limit(dist.group.WORLD)
    named = dist.new_group(timeout=timedelta(seconds=LIMIT))
    assert limit(named) == timedelta(seconds=LIMIT), limit(named)
    if rank != 0:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1.5), dist.group.WORLD)
        try:
            dist.all_reduce(torch.ones(10))
            raise AssertionError("nothing was raised")
        except dist.DistBackendError as error:
            assert "timeout of 1500 ms" in str(error) or "gave up" in str(error), str(error)
    dist.barrier(group=named)
    dist.distributed_c10d._set_pg_timeout(timedelta(microseconds=500), named)
    assert limit(named) == timedelta(milliseconds=1), limit(named)  # 0 would be no limit


def aborted(rank, size, folder):
    init(folder, rank, size)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if rank == 0:
        all_in(folder, size)
        backend.abort()
    try:
        while True:
            dist.all_reduce(torch.ones(10))
    except dist.DistBackendError as error:
        assert "rank 0 aborted the group" in str(error), str(error)
    dist.destroy_process_group()


def detail(rank, size, folder):
    """torch's own checks around every call, which need a gloo beside us."""
    init(folder, rank, size)
    dist.all_reduce(torch.ones(5), async_op=True).wait()
    outs = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(outs, torch.ones(2))
    dist.all_gather_single(torch.zeros(2 * size), torch.ones(2))
    dist.broadcast(torch.ones(3), 0)
    dist.reduce(torch.ones(3), 0)
    dist.all_to_all_single(torch.ones(size), torch.ones(size))
    dist.reduce_scatter_single(torch.ones(1), torch.ones(size))
    dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), (rank + 1) % size),
                            dist.P2POp(dist.irecv, torch.ones(1), (rank - 1) % size)])[0].wait()
    dist.barrier()
    try:
        dist.all_reduce(torch.ones(5 + rank))
        raise AssertionError("nothing was raised")
    except RuntimeError as error:
        assert "Detected mismatch between collectives" in str(error), str(error)
    dist.destroy_process_group()


def mixed_devices(rank, size, folder):
    init(folder, rank, size, backend="cpu:commd,cuda:gloo")
    assert dist.get_backend_config() == "cpu:commd,cuda:gloo"
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.name() == "commd", backend.name()
    dist.destroy_process_group()
    init(folder + "/again", rank, size, backend="cpu:commd,cuda:commd")
    dist.destroy_process_group()


def split_and_merged(rank, size, folder):
    """ProcessGroup's own split_group() and merge_remote_group()."""
    init(folder, rank, size)
    world = dist.group.WORLD
    evens = list(range(0, size, 2))
    child = world.split_group(evens, group_name="evens")
    assert (child is not None) == (rank in evens)
    if child is not None:
        assert (child.rank(), child.size()) == (evens.index(rank), len(evens))
        t = torch.ones(3)
        child.allreduce([t]).wait()
        assert t[0].item() == len(evens)
        options = child._get_backend(torch.device("cpu")).options
        assert options.backend == "commd" and options.global_ranks_in_group == evens
    both = world.merge_remote_group(dist.FileStore(folder + "/merge"), size, group_name="both")
    t = torch.ones(3)
    both.allreduce([t]).wait()
    assert t[0].item() == size
    dist.destroy_process_group()


SCENARIOS = [
    without_destroy, works_in_flight, receive_pending, callbacks_at_exit, destroyed_at_exit,
    exit_in_a_fork, killed, interrupted, interrupted_wait, late,
    limit_of_the_environment, aborted, detail, mixed_devices, split_and_merged,
]  # fmt: skip


# ---- running them -------------------------------------------------------------------------------


def rank_main(scenario, rank, size, folder, socket):
    with open(f"{folder}/out.{rank}", "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["COMMD_SOCKET"] = socket
    warnings.simplefilter("ignore", FutureWarning)
    if scenario is detail:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        dist.set_debug_level_from_env()
    scenario(rank, size, folder)


def finish(pids, folder, scenario):
    """{rank: exit status}, after the kill, if the scenario wants one."""
    codes, deadline = {}, time.monotonic() + LIMIT
    if scenario is killed:
        for rank in set(pids) - {1}:
            while not os.path.exists(f"{folder}/waits.{rank}") and time.monotonic() < deadline:
                time.sleep(0.001)
        os.kill(pids[1], signal.SIGKILL)
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for rank, pid in pids.items():
            if rank not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    for rank, pid in pids.items():
        if rank not in codes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            codes[rank] = f"none after {LIMIT} s"
    return codes


def run(scenario, sockets):
    """What went wrong, a text a rank; in a rank: None."""
    places = [
        socket for socket in sockets for _ in range(4 // len(sockets) if len(sockets) > 1 else 3)
    ]
    folder = tempfile.mkdtemp(prefix="commd-ends-")
    os.mkdir(folder + "/again")
    pids, bad = {}, []
    for rank, socket in enumerate(places):
        pids[rank] = os.fork()
        if pids[rank] == 0:
            return rank_main(scenario, rank, len(places), folder, socket)
    for rank, code in finish(pids, folder, scenario).items():
        with open(f"{folder}/out.{rank}") as file:
            # torch itself: it looks for a default backend by a name in capitals
            output = "".join(
                line for line in file if "Assuming no hooks are registered" not in line
            )
            output = output.strip()
        want = -signal.SIGKILL if scenario is killed and rank == 1 else 0
        if code != want or output:
            bad.append(f"{scenario.__name__}: rank {rank}: exit {code}, wanted {want}\n{output}")
    shutil.rmtree(folder)
    print(f"{'FAILED' if bad else 'ok'}  {scenario.__name__}", flush=True)
    return bad


def main():
    arguments = sys.argv[1:]
    names = [a for a in arguments if not a.startswith("/")]
    sockets = [a for a in arguments if a.startswith("/")]
    torch.set_num_threads(1)
    chosen = [s for s in SCENARIOS if not names or s.__name__ in names]
    failed = []
    for scenario in chosen:
        sys.stdout.flush()
        bad = run(scenario, sockets)
        if bad is None:
            return  # a rank: ends like any program
        failed += bad
    if failed:
        print("\n".join(failed), flush=True)
        sys.exit(
            f"torch_ends: {len({text.split(':')[0] for text in failed})} of {len(chosen)}"
            " scenarios failed"
        )
    print(f"torch_ends: {len(chosen)} scenarios passed")


if __name__ == "__main__":
    main()
