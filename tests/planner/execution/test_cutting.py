"""Models that cannot be cut into stages, each with the reason that a run by a plan ends with."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from longshore.planner.execution.cutting import cut
from longshore.planner.execution.script import script_of
from longshore.planner.profile.building import BuildError, Built

COUNTING = f"{Path(__file__).parent / 'counting.py'}:build"
FIRST = ("words", "places", "blocks.0")


class Branches(nn.Module):
    """Its way depends on what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) if x.sum() > 0 else -self.words(x)
        found: Tensor = self.head(x).mean()
        return found


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (("blocks.9",), "the model has no layer 'blocks.9'"),
        (("(outside of all layers)",), "the last stage has no layer"),
        (("blocks.1", "blocks.1"), "layer 'blocks.1' runs several times"),
    ],
)
def test_a_model_is_not_cut_where_it_has_no_place_for_it(last: tuple[str, ...], words: str) -> None:
    with pytest.raises(BuildError, match=words):
        cut(script_of(COUNTING, 0).made, [FIRST, last], 2)


def test_a_model_whose_way_hangs_on_its_data_is_not_cut() -> None:
    made = Built(Branches(), torch.ones(2, 3), None)
    with pytest.raises(BuildError, match="PyTorch cannot export the model"):
        cut(made, [("words",), ("head",)], 2)
