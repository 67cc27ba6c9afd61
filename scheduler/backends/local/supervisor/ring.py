"""How a supervisor runs an attempt with a ring: one process stands for all ranks, and starts the members.

Standard library only.
"""

import os
import sys
from pathlib import Path

from .spec import Spec

ROOT = Path(__file__).absolute().parents[5]  # the folder that holds the package
_HOST = (
    "import os, sys; sys.path.append(sys.argv[1]); "
    "from longshore.scheduler.backends.local.supervisor.ring_host import main; os._exit(main(sys.argv[2]))"
)


def host_command(path: str) -> tuple[str, ...]:
    """Return what runs the ring of the attempt whose folder this is."""
    return (sys.executable, "-I", "-S", "-X", "utf8", "-c", _HOST, str(ROOT), path)


def host_environment(spec: Spec) -> dict[str, str]:
    """Return the environment of that process, by which it and what it starts find Longshore's own code."""
    found = [str(ROOT), *filter(None, [spec.environment.get("PYTHONPATH")])]
    return {**spec.environment, "PYTHONPATH": os.pathsep.join(found)}


def gpus_of(spec: Spec) -> str:
    """Return all GPUs of an attempt, each once, as CUDA_VISIBLE_DEVICES has them."""
    return ",".join(str(gpu) for gpu in sorted({rank.gpu for rank in spec.ranks}))
