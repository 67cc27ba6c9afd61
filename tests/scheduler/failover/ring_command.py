"""`python -m longshore.ring` as a process."""

import os
import subprocess
import sys
from pathlib import Path

from .trial import ROOT

VARIABLES = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}


def ring(*arguments: object, folder: Path, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "longshore.ring", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=folder, env=VARIABLES | variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
