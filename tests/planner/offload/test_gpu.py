"""State that is offloaded from a real GPU; without one these tests are skipped."""

import os
import sys
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from longshore.planner.memory import OffloadMode
from longshore.planner.offload.offloading import Offloading, OffloadOptions, StateMover
from longshore.planner.offload.places import PinnedPlace
from tests.support import processes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
GPU = torch.device("cuda", 0)
WIDTH, STEPS = 2048, 8
BROKEN = """
import time, torch
from longshore.cluster.files.errors import CheckpointError
from longshore.planner.offload.offloading import StateMover
from longshore.planner.offload.places import PinnedPlace

state = [torch.randn(1 << 22, device="cuda").untyped_storage()]
mover = StateMover(PinnedPlace(state[0].nbytes(), torch.device("cuda", 0)), state)
mover.copy_out(state, time.perf_counter() + 0.5)
while not mover.is_away:
    time.sleep(0.01)
torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")] = 1.0  # no such element: the kernel fails
for call in (mover.wait_until_back, mover.close):
    try:
        call()
    except CheckpointError as error:
        print("reported", "CUDA error" in str(error))
"""


def bits(tensors: list[Tensor]) -> list[int]:
    return [int(it.view(torch.int32).sum(dtype=torch.int64)) for it in tensors]


@pytest.mark.parametrize("size", [1 << 20, 1 << 26])
def test_content_is_the_same_after_every_trip_whatever_the_gpu_is_busy_with(size: int) -> None:
    tensors = [torch.randn(size, device=GPU) for _ in range(3)]
    state, before = [it.untyped_storage() for it in tensors], bits(tensors)
    mover = StateMover(PinnedPlace(sum(it.nbytes() for it in state), GPU), state)
    matrix = torch.randn(2048, 2048, device=GPU)
    waits_s = (0.0, 0.03, 0.3)
    for wait_s, is_idle in product(waits_s, (True, False)):
        for it in tensors:
            it.add_(0.0)  # the update, which may be under way yet
        mover.copy_out(state, time.perf_counter() + 0.1)
        kept = [matrix @ matrix for _ in range(8)]
        if is_idle:
            torch.cuda.synchronize()
        time.sleep(wait_s)
        junk = [torch.full((size,), 7.0, device=GPU) for _ in range(2)]  # in the memory that became free
        del kept, junk
        mover.wait_until_back()
        assert bits(tensors) == before
    assert mover.refused is None
    assert mover.trips > 0
    was = torch.cuda.memory_allocated()
    mover.copy_out(state, time.perf_counter() + 60.0)
    until_s = time.monotonic() + 30.0
    while not mover.is_away and time.monotonic() < until_s:
        time.sleep(0.001)
    assert torch.cuda.memory_allocated() <= was - sum(it.nbytes for it in tensors)
    mover.close()
    assert bits(tensors) == before


def trained(how: OffloadMode | None, folder: Path) -> tuple[list[Tensor], list[float], int, list[int]]:
    """Train; return the weights, the losses, the least memory between updates, and how often each part was away."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)]).to(GPU)
    optimizer, drawn = torch.optim.AdamW(model.parameters()), torch.Generator(GPU).manual_seed(1)
    reported: list[str] = []
    wish = None if how is None else OffloadOptions(how, folder, has_own_core=True)
    parts = None if wish is None else Offloading(wish, 0, optimizer, list(model.parameters()), reported.append)
    least, losses = sys.maxsize, []
    for step in range(STEPS):
        if parts is not None:
            parts.begin_step()
        for _ in range(8):
            batch = torch.randn(4096, WIDTH, device=GPU, generator=drawn)
            loss = (model(batch) - batch).square().mean()
            loss.backward()
        losses.append(loss.detach().item())
        least = min(least, torch.cuda.memory_allocated()) if step > STEPS // 2 else least
        if parts is not None:
            parts.begin_sync()
        time.sleep(0.1)  # the sum
        if parts is not None:
            parts.end_sync()
        optimizer.step()
        optimizer.zero_grad()
        if parts is not None:
            parts.end_update()
    trips = [] if parts is None else [it.trips for it in parts.measurements()]
    if parts is not None:
        parts.close()
    return [it.detach().cpu() for it in model.parameters()], losses, least, trips


def test_a_training_that_puts_state_away_has_the_same_weights_and_needs_less_memory(tmp_path: Path) -> None:
    weights, losses, least, _ = trained(None, tmp_path)
    others, other_losses, other_least, trips = trained(OffloadMode.one_copy, tmp_path)
    assert len(trips) == 2
    assert min(trips) > STEPS // 2
    assert other_losses == losses
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))
    state_bytes = 2 * sum(it.nbytes for it in weights)
    assert other_least < least - state_bytes // 2


def test_a_kernel_that_fails_while_state_is_away_is_reported_and_no_thread_waits() -> None:
    done = processes.run(
        [sys.executable, "-c", BROKEN], env=dict(os.environ), capture_output=True, timeout_s=120, check=False
    )
    assert done.stdout.splitlines() == ["reported True"] * 2, done.stderr[-2000:]
