#!/usr/bin/env python3
"""Runs torch's own tests of torch.distributed._reconfigure() over commd, its ranks on two nodes.

    PYTHON tests/torch/contract.py FILE [TEST...]

PYTHON has torch 2.14 or later, and commd. FILE is test/distributed/test_c10d_fault_tolerance.py of
torch's repository; its wheels do not have it, and no text of it is copied into this tree. TEST: a
part of a name; without one, all.

The file knows backends by name: BACKENDS adds commd, and EDITS has the places that ask for the one
whose operations time out and whose abort() is seen by get_error(), as those of commd. Where one of
them is found another number of times, the file is another one than this was written for.
"""

import os
import sys
import types
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration/lib"))
from edited import edited  # noqa: E402

NAME = "commd_contract"
SOCKETS = "COMMD_TEST_SOCKETS"  # where rank 0, 1, ... finds its commd, separated by commas
BACKENDS = "FAULT_TOLERANCE_BACKENDS = ["
EDITS = [
    (BACKENDS, BACKENDS + '\n    ("commd", "cpu"),'),
    ('self.backend_name == "nccl2"', 'self.backend_name in ("nccl2", "commd")'),
    ('self.backend_name != "nccl2"', 'self.backend_name not in ("nccl2", "commd")'),
]


def load(path):
    """The file as a module."""
    module = types.ModuleType(NAME)
    module.__file__ = path
    sys.modules[NAME] = module
    exec(compile(edited(path, EDITS), path, "exec"), module.__dict__)
    return module


def contract(module):
    """Its tests. Ranks are forked: to spawn them takes ten times as long."""
    import torch.multiprocessing

    class Contract(module.CommdFaultToleranceTest):
        def _spawn_processes(self):
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank, *args, **kwargs):
            os.environ["COMMD_SOCKET"] = os.environ[SOCKETS].split(",")[rank]
            return super()._run(rank, *args, **kwargs)

    return Contract


def main(path, words):
    from cluster import Cluster

    tests = contract(load(path))
    names = unittest.TestLoader().getTestCaseNames(tests)
    names = [name for name in names if not words or any(word in name for word in words)]
    with Cluster(2) as cluster:
        os.environ[SOCKETS] = ",".join(cluster.nodes[node].socket for node in (0, 1, 1))
        result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(map(tests, names)))
    passed = result.testsRun - len(result.failures + result.errors + result.skipped)
    print(f"{passed} of {len(names)} passed")
    return passed < len(names)


if len(sys.argv) < 2:
    raise SystemExit(__doc__.split("\n\n")[1].strip())
sys.exit(main(sys.argv[1], sys.argv[2:]))
