"""`python -m longshore.ring` as a process."""

import os
import sys
from pathlib import Path
from typing import IO

from tests.support import processes
from tests.support.processes import PYTHON_PATH

VARIABLES = {**os.environ, "PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"}


def ring(
    *arguments: object, folder: Path, stderr: int | IO[bytes] = processes.PIPE, **variables: str
) -> processes.Process[str]:
    command = [sys.executable, "-m", "longshore.ring", *map(str, arguments)]
    return processes.start(
        command, cwd=folder, env=VARIABLES | variables, text=True, stdout=processes.PIPE, stderr=stderr
    )
