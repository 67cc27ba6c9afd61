"""Models that cannot be cut into stages, each with the reason that a run by a plan ends with."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from longshore.planner.execution.cutting import cut_into_stages, load_script, state_by_name
from longshore.planner.profile.building import BuildError, BuiltModel

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
        cut_into_stages(load_script(COUNTING, 0).made, [FIRST, last], 2)


def test_a_model_whose_control_flow_depends_on_its_data_is_not_cut() -> None:
    made = BuiltModel(Branches(), torch.ones(2, 3), None)
    with pytest.raises(BuildError, match="PyTorch cannot export the model"):
        cut_into_stages(made, [("words",), ("head",)], 2)


@pytest.mark.parametrize("kept", [{"steps": 3}, None, "words", [torch.ones(1)]], ids=str)
def test_what_a_module_keeps_beside_its_weights_is_none_of_them(kept: object) -> None:
    class Keeps(nn.Linear):
        def get_extra_state(self) -> object:
            return kept

        def set_extra_state(self, state: object) -> None:
            """Nothing of it is needed."""

    assert state_by_name(nn.Sequential(Keeps(2, 1), nn.BatchNorm1d(1))).keys() == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"
    }  # fmt: skip
