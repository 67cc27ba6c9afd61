"""What stands for PyTorch's compiler in what tests start: all else of PyTorch can be imported, in any order."""

import sys
from itertools import permutations

import pytest

from tests.support import processes

PARTS = ("torch.distributed.tensor", "torch.distributed.pipelining", "torch.distributed.checkpoint")
OPTIMIZER = "import torch; torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])"
COMPILED = "assert torch.compile(lambda it: it, backend='eager')(torch.ones(1)) == 1"


@pytest.mark.few(2)
@pytest.mark.parametrize("parts", list(permutations(PARTS)), ids=str)
def test_all_of_pytorch_is_there_after_an_optimizer_was_made(parts: tuple[str, ...]) -> None:
    lines = [OPTIMIZER, *(f"import {name}" for name in parts), COMPILED]
    done = processes.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
