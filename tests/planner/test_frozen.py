"""Weights that are not trained cost what they take and no more; models that need several samples get them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.training_plan import MemorySaving
from longshore.planner.evaluating import evaluate
from longshore.planner.hardware import DEFAULT
from longshore.planner.memory import state_bytes_per_parameter
from longshore.planner.plan import FoundPlan, PlanLayout
from longshore.planner.profile.profiling import LayerProfile, ModelProfile
from longshore.planner.profile.rungs import CPU, META, RungProfile, profile_by_rungs
from longshore.planner.request import PlanRequest, layer_arrays, make_request, memory_costs
from longshore.planner.search import find_plan

from .models import a100, gpt

WIDTH = 8
NUMBERS = WIDTH * WIDTH


class Kept(nn.Module):
    """A product by weights of some type, as quantised layers have them."""

    def __init__(self, dtype: torch.dtype, *, is_buffer: bool = False) -> None:
        super().__init__()
        kept = torch.zeros(WIDTH, WIDTH).to(dtype)
        if is_buffer:
            self.register_buffer("kept", kept)
        else:
            self.kept: Tensor = nn.Parameter(kept, requires_grad=False)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.kept.to(x.dtype)) * self.scale


class Tied(nn.Module):
    def __init__(self, *, is_frozen: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.words.weight
        self.words.weight.requires_grad = not is_frozen

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.head(self.words(words))
        return found


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model[0].requires_grad_(requires_grad=False)
    model[1].bias.requires_grad = False
    return model


def adapted() -> nn.Module:
    """Return a frozen product with a low-rank one beside it that is trained."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1, bias=False))
    model[0].requires_grad_(requires_grad=False)
    return model


def profiled(model: Callable[[], nn.Module], batch: Callable[[], Tensor]) -> RungProfile:
    return profile_by_rungs(lambda: (model(), batch()), {}, 0)


def numbers() -> Tensor:
    return torch.ones(4, WIDTH)


def words() -> Tensor:
    return torch.zeros(4, 3, dtype=torch.long)


# trained, not trained, bytes of that, tied, bytes of tied ones that are not trained
HELD: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], tuple[float, ...]]] = {
    "adapted": (adapted, numbers, (WIDTH, NUMBERS, 2 * NUMBERS, 0, 0)),
    "half frozen": (half_frozen, numbers, (NUMBERS, NUMBERS + 2 * WIDTH, 2 * (NUMBERS + 2 * WIDTH), 0, 0)),
    "float64": (lambda: Kept(torch.float64), numbers, (WIDTH, NUMBERS, 2 * NUMBERS, 0, 0)),
    "bfloat16": (lambda: Kept(torch.bfloat16), numbers, (WIDTH, NUMBERS, 2 * NUMBERS, 0, 0)),
    "float8": (lambda: Kept(torch.float8_e4m3fn), numbers, (WIDTH, NUMBERS, NUMBERS, 0, 0)),
    "int8": (lambda: Kept(torch.int8), numbers, (WIDTH, NUMBERS, NUMBERS, 0, 0)),
    "a buffer of int8": (lambda: Kept(torch.int8, is_buffer=True), numbers, (WIDTH, 0, NUMBERS, 0, 0)),
    "a buffer": (lambda: Kept(torch.float32, is_buffer=True), numbers, (WIDTH, 0, 2 * NUMBERS, 0, 0)),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(WIDTH)), numbers, (2 * WIDTH, 0, 4 * WIDTH + 8, 0, 0)),
    "tied": (lambda: Tied(is_frozen=False), words, (NUMBERS + WIDTH, 0, 0, NUMBERS, 0)),
    "tied and frozen": (lambda: Tied(is_frozen=True), words, (WIDTH, NUMBERS, 2 * NUMBERS, 0, 2 * NUMBERS)),
    "sparse gradients": (
        lambda: nn.Sequential(nn.Embedding(100, WIDTH, sparse=True), nn.Linear(WIDTH, 1)), words,
        (100 * WIDTH + WIDTH + 1, 0, 0, 0, 0),
    ),
    "sparse bags": (
        lambda: nn.Sequential(nn.EmbeddingBag(100, WIDTH, mode="sum", sparse=True), nn.Linear(WIDTH, 1)), words,
        (100 * WIDTH + WIDTH + 1, 0, 0, 0, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_a_profile_reports_trained_weights_from_others(name: str) -> None:
    model, batch, held = HELD[name]
    layers = profiled(model, batch).layers
    names = ("parameters", "frozen_parameters", "frozen_bytes", "tied_parameters", "tied_frozen_bytes")
    found = {it: sum(getattr(layer, it) for layer in layers) for it in names}
    assert (found["parameters"] - found["frozen_parameters"], *list(found.values())[1:]) == held


def test_a_frozen_product_has_no_gradient_of_its_weights() -> None:
    """Its input needs none either, so that only the trained product has a backward pass, of its weights alone."""
    frozen, trained = profiled(adapted, numbers).layers
    assert frozen.backward_flops == 0.0
    assert trained.backward_flops == trained.forward_flops


def with_frozen(profile: ModelProfile, share: float) -> ModelProfile:
    def frozen(it: LayerProfile) -> LayerProfile:
        part = share * it.parameters
        return it.model_copy(update={"frozen_parameters": part, "frozen_bytes": 2.0 * part})

    return profile.model_copy(update={"layers": tuple(map(frozen, profile.layers))})


@pytest.mark.parametrize("saving", list(MemorySaving))
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_what_is_not_trained_takes_two_bytes_and_no_gradient_or_optimizer(saving: MemorySaving, share: float) -> None:
    data, profile = 4, gpt(layers=2)
    found = memory_costs(layer_arrays(with_frozen(profile, share)), saving, data, 1, 1, has_tied_copies=False)
    every = sum(it.parameters for it in profile.layers)
    frozen = 2.0 * every * share / (data if saving.zero == 3 else 1)
    assert found.state_bytes.sum() == pytest.approx(
        every * (1.0 - share) * state_bytes_per_parameter(saving, data) + frozen
    )
    trained = memory_costs(layer_arrays(profile), saving, data, 1, 1, has_tied_copies=False)
    assert np.allclose(found.optimizer_bytes, trained.optimizer_bytes * (1.0 - share))


def request(profile: ModelProfile, batch: int = 64, gpus: int = 8) -> PlanRequest:
    return make_request(profile, DEFAULT, (a100(gpus),), batch=batch, samples=1e4, deadline_s=None)


def planned(profile: ModelProfile) -> FoundPlan:
    found = evaluate(request(profile), (a100(8),), PlanLayout(8, 1, 1, 8, MemorySaving.none))
    assert isinstance(found, FoundPlan)
    return found


def test_only_what_is_trained_is_summed_and_updated() -> None:
    profile = gpt(layers=4)
    all_of_it, part = planned(profile), planned(with_frozen(profile, 0.75))
    assert part.stages[0].parameters == all_of_it.stages[0].parameters
    assert part.stages[0].trained_parameters == pytest.approx(0.25 * all_of_it.stages[0].trained_parameters)
    assert part.stages[0].ring_bytes == pytest.approx(0.25 * all_of_it.stages[0].ring_bytes)
    assert part.times.optimizer_s == pytest.approx(0.25 * all_of_it.times.optimizer_s)


class Normed(nn.Module):
    """Batch norm behind pooling needs two samples; groups of four need as many."""

    def __init__(self, *, looks: bool = False, groups: int = 1) -> None:
        super().__init__()
        self.looks, self.groups = looks, groups
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.body(x))
        if self.looks and y.abs().max().item() > 1e6:
            y = y / 2.0
        found: Tensor = self.head(y.view(-1, self.groups, 4).flatten(0, 1))
        return found


@pytest.mark.parametrize(
    ("groups", "samples", "least"), [(1, 8, 2), (1, 1, 2), (1, 2, 2), (2, 8, 2), (4, 8, 8), (4, 4, 4)]
)
@pytest.mark.parametrize("looks", [True, False])
def test_a_model_is_profiled_with_as_many_samples_as_it_needs(
    groups: int, samples: int, least: int, *, looks: bool
) -> None:
    def profile_of(**settings: Any) -> RungProfile:
        return profiled(lambda: Normed(**settings), lambda: torch.ones(samples, 3, 9, 9))

    found = profile_of(looks=looks, groups=groups)
    is_run = looks or samples == 1  # without weights the example is taken as it is, and one sample does not do
    assert found.rung == (CPU.format(least, 2 * least) if is_run else META)
    assert found.min_samples == least
    plain = profile_by_rungs(lambda: (Normed(), torch.ones(8, 3, 9, 9)), {}, 0)
    for name in ("forward_flops", "output_bytes", "input_elements"):
        # Looking at a value is in no layer, and counts as one behind them.
        assert [getattr(it, name) for it in found.layers[:3]] == [getattr(it, name) for it in plain.layers], name


@pytest.mark.parametrize("least", [1, 2, 5, 100])
def test_no_plan_has_micro_batches_that_the_model_does_not_train_on(least: int) -> None:
    profile = gpt(layers=2).model_copy(update={"min_samples": least})
    plan = find_plan(request(profile, batch=400)).plan
    assert plan is not None
    assert plan.layout.micro_batch >= least


def test_a_batch_of_fewer_samples_than_the_model_needs_is_refused() -> None:
    profile = gpt(layers=2).model_copy(update={"min_samples": 4})
    with pytest.raises(InputError, match="fewer than 4 samples") as refused:
        find_plan(request(profile, batch=2))
    assert refused.value.field == "--batch"
