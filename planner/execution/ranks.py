"""The ranks of a plan on this machine: forked from one process, which has imported PyTorch for all of them.

The import takes seconds of a core, and the imports of the first optimizer as long again.

Source: SPEC P1.
"""

import argparse
import gc
import importlib
import os
import random
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ...cluster.files.processes import kill_with_parent_hook

PIPELINES = "torch.distributed.pipelining"  # slow to load
RANK_IMPORTS = ("torch", "torch.distributed", "torch._dynamo", "longshore.planner.execution.worker")
# With more, a library would start threads, which a fork does not copy. Ranks have one thread each.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main(words: Sequence[str] | None = None) -> None:
    """Fork the ranks and report them until all have ended; in a rank, return once its module has run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--launcher", type=int, help="process with which this one ends")
    parser.add_argument("--reports", type=int, help="descriptor for lines `RANK pid PID` and `RANK status STATUS`")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--port", type=int, help="at which they meet")
    parser.add_argument("--errors", type=Path, help="folder in which each has a file for standard error")
    parser.add_argument("--pipelines", action="store_true", help="whether the ranks have stages")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    kill_with_parent_hook(given.launcher)()
    os.environ.update(dict.fromkeys(THREADS, "1"))
    import numpy
    import torch

    for name in (*RANK_IMPORTS, *([PIPELINES] if given.pipelines else [])):
        importlib.import_module(name)
    # Garbage collection in ranks would copy the memory of all imports.
    gc.collect()
    gc.freeze()
    rank = _fork_ranks(given.ranks, given.reports)
    if rank is None:
        return
    os.environ.update(_rank_environment(rank, given.ranks, given.port))
    with (given.errors / f"{rank}.err").open("ab") as errors:
        os.dup2(errors.fileno(), 2)
    random.seed()  # a fork has the state of its parent
    numpy.random.seed()  # noqa: NPY002
    torch.seed()
    sys.argv[:] = [given.module, *given.arguments]
    try:
        runpy.run_module(given.module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code:
            raise
    completed_path(given.errors, rank).touch()


def completed_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank that has done all its work: the user's code can end its process with status 0."""
    return folder / f"{rank}.completed"


def _fork_ranks(ranks: int, reports: int) -> int | None:
    """Fork all ranks, and report how each ends; return the number in a rank's process, and None here at the end."""
    own, pids = os.getpid(), dict[int, int]()
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            kill_with_parent_hook(own)()
            os.setsid()
            os.write(reports, b"%d pid %d\n" % (rank, os.getpid()))  # of a session that can be killed
            os.close(reports)
            return rank
        pids[pid] = rank
    while pids:
        pid, status = os.wait()
        if pid in pids:  # a library may have started something of its own
            os.write(reports, b"%d status %d\n" % (pids.pop(pid), os.waitstatus_to_exitcode(status)))
    return None


def _rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


if __name__ == "__main__":
    main()
