#!/usr/bin/env python3
"""Runs programs by forking their ranks from a process that has torch loaded; see run_programs.py.

Reads one JSON object per line, {"program": PATH, "ranks": [{"environment": {}, "output": PATH},
...], "seconds": LIMIT}, and answers each with {"codes": [...], "late": bool, "seconds": ...}.

A rank sees what it would see if it had been started as `python PROGRAM`: the program is its
__main__, and it leaves through Python's exit handlers. The others get GRACE seconds once a rank
has failed: they should end by themselves, because it is gone.
"""

import faulthandler
import gc
import json
import os
import selectors
import signal
import sys
import time
import traceback
import types

import torch
import torch._dynamo  # what optimizers import at their first step; and more that takes seconds:
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.nn.parallel
import torch.utils.data

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(TOP, "tests/integration/lib"))
from limit import Limit  # noqa: E402

GRACE = 60.0


def run_program(path, environment, output):
    """In the rank's own process. Whoever called must return at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd, kind in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(f"{output}.{kind}", flags, 0o644), fd)
    os.environ.update(environment)
    faulthandler.enable(sys.__stderr__)  # a rank that hangs is ended by SIGABRT
    sys.argv = [path]
    sys.path[0] = os.path.dirname(path)
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    with open(path) as file:
        code = compile(file.read(), path, "exec")
    try:
        exec(code, main.__dict__)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


class Ranks:
    """The processes of one run."""

    def __init__(self):
        self.pids, self.codes, self.late = [], {}, False

    def wait(self, limit):
        """Until all have ended; kills what has not after @limit, or GRACE after a failure."""
        end = Limit(limit)
        with selectors.DefaultSelector() as selector:
            for pid in self.pids:
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            while len(self.codes) < len(self.pids):
                for key, _ in selector.select(min(1, end.left() + 0.01)):
                    code = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                    self.codes[key.data] = code
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    if code != 0:
                        end = min(end, Limit(GRACE), key=Limit.left)
                if end.over() and len(self.codes) < len(self.pids):
                    # it says where it is, or is not able to
                    self.kill(signal.SIGKILL if self.late else signal.SIGABRT)
                    self.late, end = True, Limit(GRACE)

    def kill(self, how):
        for pid in self.pids:
            if pid not in self.codes:
                os.kill(pid, how)


def serve():
    """Returns what a rank has to run, in the rank; never otherwise before the end of input."""
    for line in sys.stdin:
        request = json.loads(line)
        begin, ranks = time.monotonic(), Ranks()
        for rank in request["ranks"]:
            pid = os.fork()
            if pid == 0:
                return request["program"], rank["environment"], rank["output"]
            ranks.pids.append(pid)
        ranks.wait(request["seconds"])
        codes = [ranks.codes[pid] for pid in ranks.pids]
        answer = {"codes": codes, "late": ranks.late, "seconds": time.monotonic() - begin}
        print(json.dumps(answer), flush=True)
    return None


def main():
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise SystemExit(f"program_host: importing torch has started {threads - 1} threads")
    gc.collect()
    gc.freeze()  # else each rank walks through, and so copies, all of it when it ends: a second
    todo = serve()
    if todo:
        run_program(*todo)


if __name__ == "__main__":
    main()
