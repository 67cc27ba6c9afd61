"""What stands for PyTorch's compiler in what tests start: all else of PyTorch can be imported, in any order."""

import os
import sys

import pytest

from tests.support import processes

ENDS = "import atexit, sys, threading, time\natexit.register(print, 'last')\nprint('first')\n" + (
    "threading.Thread(target=lambda: (time.sleep(0.2), print('then'))).start()\nsys.exit(3)"
)
PARTS = ("torch.distributed.tensor", "torch.distributed.pipelining", "torch.distributed.checkpoint")
OPTIMIZER = "import torch; torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])"
COMPILED = "assert torch.compile(lambda it: it, backend='eager')(torch.ones(1)) == 1"


@pytest.mark.parametrize("environment", [{}, {"WHOLE_END": "1"}], ids=str)
def test_a_process_ends_as_python_does(environment: dict[str, str]) -> None:
    line = [sys.executable, "-c", f"{OPTIMIZER}\n{ENDS}"]
    done = processes.run(line, env=os.environ | environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "first\nthen\nlast\n", "")


@pytest.mark.few(1)
@pytest.mark.parametrize("parts", [PARTS, PARTS[::-1], (*PARTS[1:], PARTS[0])], ids=str)
def test_all_of_pytorch_is_there_after_an_optimizer_was_made(parts: tuple[str, ...]) -> None:
    lines = [OPTIMIZER, *(f"import {name}" for name in parts), COMPILED]
    done = processes.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
