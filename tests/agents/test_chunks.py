"""Passes in chunks: what the network gives in one go, on any number of threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from longshore.agents.learned.network import ObservationLayout, find_network
from longshore.agents.networks.sb3_policy import FORWARD_CHUNK_ROWS, forward_in_chunks
from longshore.cluster.files.plugins import registered

LAYOUT = ObservationLayout(globals=5, items=6, features=4, actions=6, waiting=False)


def passes(name: str, threads: int, rows: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs and gradients, in one go (threads 0) or in chunks."""
    torch.manual_seed(1)
    network = find_network(name)(LAYOUT)
    observation = torch.rand(rows, LAYOUT.globals + LAYOUT.items * LAYOUT.features)
    with ThreadPoolExecutor(threads or 1) as pool:
        outputs = forward_in_chunks(network, pool, observation) if threads else network(observation)
        weights = torch.rand(rows, LAYOUT.actions)
        ((outputs[0] * weights).sum() + (outputs[1] ** 2).sum()).backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return [output.detach() for output in outputs], gradients


@pytest.mark.parametrize("name", registered("networks"))
@pytest.mark.parametrize("rows", [FORWARD_CHUNK_ROWS, FORWARD_CHUNK_ROWS + 1, 3 * FORWARD_CHUNK_ROWS - 7])
def test_chunks_give_the_outputs_and_gradients_of_one_pass(name: str, rows: int) -> None:
    whole, parts = passes(name, 0, rows), passes(name, 2, rows)
    assert len(whole[1]) == len(parts[1]) > 0
    for one, other in zip(whole[0] + whole[1], parts[0] + parts[1], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", registered("networks"))
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    one, three = passes(name, 1, 5 * FORWARD_CHUNK_ROWS), passes(name, 3, 5 * FORWARD_CHUNK_ROWS)
    assert all(torch.equal(a, b) for a, b in zip(one[0] + one[1], three[0] + three[1], strict=True))
