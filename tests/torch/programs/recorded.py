"""The flight recorder of commd: its own records, its dumps in torch's analyser, its pages in
torch.distributed.debug, and what the profiler shows.
"""

import json
import logging
import os
import time
import urllib.request
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.debug import _store
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir
from torch.profiler import ProfilerActivity, profile

import commd.torch
from checks import FOLDER, check, raises, same

# What the calls of collectives() are in a group of 4: sizes in, sizes out.
CALLS = [
    ("all_reduce", [[5]], [[5]]),
    ("barrier", [], []),
    ("broadcast", [[3, 2]], [[3, 2]]),
    ("all_gather", [[2]], [[4, 2]]),
    ("_all_gather_base", [[2]], [[8]]),
    ("_reduce_scatter_base", [[4]], [[1]]),
    ("reduce_scatter", [[4, 3]], [[3]]),
    ("all_to_all", [[4]], [[4]]),
    ("all_reduce", [[7]], [[7]]),
    ("allreduce_coalesced", [[1], [2]], [[1], [2]]),
]


def collectives(rank, size):
    dist.all_reduce(torch.ones(5))
    dist.barrier()
    dist.broadcast(torch.ones(3, 2), 0)
    dist.all_gather([torch.zeros(2) for _ in range(size)], torch.ones(2))
    dist.all_gather_single(torch.zeros(8), torch.ones(2))
    dist.reduce_scatter_single(torch.zeros(1), torch.ones(4))
    dist.reduce_scatter(torch.zeros(3), [torch.ones(3) for _ in range(size)])
    dist.all_to_all_single(torch.zeros(4), torch.ones(4))
    dist.all_reduce(torch.ones(7), async_op=True).wait()
    dist.all_reduce_coalesced([torch.ones(1), torch.ones(2)])
    if rank < 2:  # messages are not recorded
        (dist.send if rank else dist.recv)(torch.ones(1), 1 - rank)


def records(rank, size):
    dump = commd.torch.flight_recorder()
    same("version", dump["version"], "2.10")
    same("group", dump["pg_config"]["0"],
         {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))})  # fmt: skip
    entries = dump["entries"]
    seen = [(e["profiling_name"], e["input_sizes"], e["output_sizes"]) for e in entries]
    same("operations", seen, [("gloo:" + name, *sizes) for name, *sizes in CALLS])
    same("numbers", [e["collective_seq_id"] for e in entries], list(range(1, len(CALLS) + 1)))
    same("states", {(e["state"], e["retired"], e["backend"]) for e in entries},
         {("completed", True, "commd")})  # fmt: skip
    for entry in entries:
        begun, done = entry["time_discovered_started_ns"], entry["time_discovered_completed_ns"]
        check("times", entry["time_created_ns"] <= begun <= done <= time.time_ns(), entry)
        same("timeout", entry["timeout_ms"], 1800000)
    same("none is pending", commd.torch.flight_recorder(only_active=True)["entries"], [])


def analysed(folder):
    config = JobConfig().parse_args([folder, "--prefix", "rank"])
    details, version = read_dir(config)
    return build_db(details, config, version).collectives


def analyser(rank, size):
    folder = os.path.join(FOLDER, "well")
    os.makedirs(folder, exist_ok=True)
    commd.torch.dump_flight_recorder(f"{folder}/rank")
    dist.barrier()
    if rank:
        return
    found = analysed(folder)
    same("analysed", [c.collective_name for c in found], ["gloo:" + name for name, *_ in CALLS])
    check("all is well", all(c.pass_check and not c.missing_ranks for c in found), found)


def fetch(port, path, data=None):
    with urllib.request.urlopen(f"http://localhost:{port}{path}", data, timeout=300) as answer:
        return answer.read().decode()


def pages(rank, size):
    """As start_debug_server() makes them, but the frontend is a thread of rank 0."""
    from torch._C._distributed_c10d import _WorkerServer
    from torch.distributed.debug._frontend import FrontendServer

    import commd.debug

    worker = _WorkerServer("::", 0)
    _store.tcpstore_client().set(f"rank{rank}", f"http://localhost:{worker.port}")
    dist.barrier()
    if rank == 0:
        server = FrontendServer(0, commd.debug.handlers())
        port = server._server.server_port
        text = fetch(port, "/fr_trace_commd")
        check("the page has the collectives", text.count("_reduce_scatter_base") >= size, text)
        check("it has the barrier that rank 0 keeps", "{0}" in text, text)
        check("it leads to the others", "/commd_why" in text and "/fr_trace_json" in text, text)
        text = fetch(port, "/fr_trace_commd_json")
        same("the JSON has all", text.count("allreduce_coalesced"), size)
        text = fetch(port, "/commd_why")
        check("commctl why", "HEALTHY" in text or "_BOUND" in text or "NOT_" in text, text)
        check("a dump", "allreduce_coalesced" in commd.debug.CommdFlightRecorder().dump())
        server._server.shutdown()
        server._server.server_close()
    answer = json.loads(fetch(worker.port, "/handler/commd_fr_trace_json", b""))
    same("the rank itself", len(answer["entries"]), len(CALLS) + 2)
    dist.barrier()
    worker.shutdown()


def profiler(rank, size):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        dist.all_reduce(torch.ones(500))
        if rank == 0:
            time.sleep(1)
        dist.broadcast(torch.ones(3, 2), 0, async_op=True).wait()
    path = os.path.join(FOLDER, f"trace{rank}.json")
    trace.export_chrome_trace(path)
    with open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    calls = [e["args"] for e in events if e["name"] == "record_param_comms"]
    names = ("Collective name", "bytes", "In msg nelems", "dtype")
    same("calls", [tuple(call[name] for name in names) for call in calls],
         [("all_reduce", 2000, 500, "Float"), ("broadcast", 24, 6, "Float")])  # fmt: skip
    same("groups", {(c["Process Group Description"], c["Process Group Ranks"]) for c in calls},
         {("default_pg", str(list(range(size))))})  # fmt: skip
    waits = [e["dur"] for e in events if e["name"] == "commd:wait broadcast"]
    check("who comes early waits", rank == 0 or (len(waits) == 1 and waits[0] > 50000), waits)


def health():
    """torch 2.15: its page names the backend of a group that has met a failure."""
    if not hasattr(dist.distributed_c10d, "HealthCheckHook"):
        return
    from torch._C._distributed_c10d import _WorkerServer

    worker, wanted = _WorkerServer("::", 0), {"healthy": False, "unhealthy_backends": ["commd"]}
    while (answer := json.loads(fetch(worker.port, "/handler/c10d_health_check", b""))) != wanted:
        check("healthy before it hears of the failure", answer["healthy"], answer)
        time.sleep(0.01)
    worker.shutdown()


def missing(rank, size):
    """One does not come: the others dump by themselves, and the analyser says who it was."""
    folder = os.path.join(FOLDER, "hung")
    os.makedirs(folder, exist_ok=True)
    os.environ["COMMD_FR_DUMP"] = f"{folder}/rank"
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    if rank == 2:
        time.sleep(2)
        commd.torch.dump_flight_recorder(f"{folder}/rank")
    else:
        late = torch.ones(9)
        raises("a timeout", dist.DistBackendError, lambda: dist.all_reduce(late, group=group))
        last = commd.torch.flight_recorder()["entries"][-1]
        same("it has not completed", (last["state"], last["retired"]), ("started", True))
        check("and says why", "2" in last["error"], last)
        health()
    dist.barrier()
    if rank == 0:
        same("files", sorted(os.listdir(folder)), [f"rank{r}" for r in range(size)])
        (bad,) = [c for c in analysed(folder) if not c.pass_check or c.missing_ranks]
        same("who was missing", (bad.missing_ranks, bad.input_sizes), ({2}, [[9]]))


def main():
    logging.disable(logging.CRITICAL)  # torch's analyser says what it finds
    os.environ["PATH"] = f"{os.environ['COMMD_BUILD']}/client/ctl:{os.environ['PATH']}"
    dist.init_process_group("commd")
    rank, size = dist.get_rank(), dist.get_world_size()
    collectives(rank, size)
    records(rank, size)
    analyser(rank, size)
    pages(rank, size)
    profiler(rank, size)
    missing(rank, size)
    dist.destroy_process_group()


main()
