"""What a snapshot holds is what a run could have left, or it is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import Adam, RMSprop

from longshore.envs.batch import Batch, View
from longshore.training.snapshot import Arrays, learned_arrays, restore_batch, restore_learned, restore_torch
from tests.envs.copied_play import problem
from tests.envs.random_play import open_actions


def played(view: View, steps: int = 9) -> Batch:
    batch, rng = Batch(problem(order="easy"), view, 3), np.random.default_rng(0)
    batch.reset()
    for _ in range(steps):
        batch.step(open_actions(batch.masks, rng))
        batch.reset_rows(np.flatnonzero(batch.ended))
    return batch


def kept(batch: Batch) -> Arrays:
    """Return copies of what a snapshot holds of environments."""
    arrays: Arrays = {f"state/{name}": value.copy() for name, value in batch.sim.state._asdict().items()}
    return arrays | {f"batch/{name}": value.copy() for name, value in batch.arrays().items()}


@pytest.mark.parametrize("action", ["node", "gpu", "candidate"])
def test_environments_go_on_where_they_were_kept(action: str) -> None:
    batch, twin = played(View(action, reward="dt")), played(View(action, reward="dt"), 0)
    restore_batch(kept(batch), twin)
    for each in (batch, twin):
        rng = np.random.default_rng(1)
        for _ in range(60):
            each.step(open_actions(each.masks, rng))
            each.reset_rows(np.flatnonzero(each.ended))
    assert np.array_equal(batch.observations, twin.observations)
    mine, theirs = kept(batch), kept(twin)
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine if not name.startswith("state/"))
    assert np.array_equal(mine["state/now_s"], theirs["state/now_s"])


def test_half_a_placement_is_refused_where_moves_are_whole_ones() -> None:
    batch = played(View("node", reward="dt"))
    assert batch.sim.state.picked_nodes.any()
    restore_batch(kept(batch), played(View("node", reward="dt"), 0))
    with pytest.raises(ValueError, match=r"state\.picked_nodes\[.*\] is .*, expected none before a whole placement"):
        restore_batch(kept(batch), played(View("candidate", reward="dt"), 0))


def test_environments_are_left_as_they_were_where_something_is_refused() -> None:
    batch = played(View("node"))
    before = kept(batch)
    for name, array in before.items():
        with pytest.raises(ValueError, match=name):
            restore_batch(kept(played(View("node"), 20)) | {name: array[:1]}, batch)
    after = kept(batch)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def learned(kind: type[Adam | RMSprop]) -> tuple[nn.Linear, Adam | RMSprop]:
    """Return weights after a step of an optimiser."""
    network = nn.Linear(3, 2)
    optimizer = kind(network.parameters())
    network(torch.ones(3)).sum().backward()
    optimizer.step()
    return network, optimizer


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *((kind, "step", value) for kind in (Adam, RMSprop) for value in (0.0, -1.0)),
        *((Adam, "exp_avg", value) for value in (-3e38, 3e38)),
        *((Adam, "exp_avg_sq", value) for value in (-1e-9, 3e38)),
        *((RMSprop, "square_avg", value) for value in (-1e-9, 3e38)),
    ],
)
def test_what_no_step_of_an_optimiser_leaves_is_refused(kind: type[Adam | RMSprop], name: str, value: float) -> None:
    arrays = learned_arrays(*learned(kind))
    restore_learned(arrays, *learned(kind))
    arrays[f"adam/1/{name}"] = np.full_like(arrays[f"adam/1/{name}"], value)
    with pytest.raises(ValueError, match=f"adam/1/{name} holds .*, expected "):
        restore_learned(arrays, *learned(kind))


DRAWS = (torch.rand, torch.randn, torch.randperm, lambda count: torch.rand(count).exponential_())


@given(st.integers(0, 2**62), st.lists(st.tuples(st.sampled_from(DRAWS), st.integers(0, 1300)), max_size=4))
def test_torch_draws_on_from_wherever_it_was(seed: int, draws: list[tuple[Callable[[int], object], int]]) -> None:
    torch.manual_seed(seed)
    for draw, count in draws:
        draw(count)
    kept = {"torch": torch.get_rng_state().numpy().copy()}
    expected = torch.rand(2000)
    restore_torch(kept)
    assert torch.equal(torch.rand(2000), expected)
