"""What layers compute and keep, against formulas by hand; nothing has weights unless noted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from longshore.planner.profile import rungs
from longshore.planner.profile.building import BuildError, LayerHint
from longshore.planner.profile.profiling import OUTSIDE
from longshore.planner.profile.rungs import CPU, META, RungProfile, profile_by_rungs

HINT = LayerHint(forward_flops=10.0, saved_bytes=20.0, output_bytes=30.0)


def profiled(model: Callable[[], nn.Module], *shape: int, words: int = 0, **hints: LayerHint) -> RungProfile:
    """Profile a model on a batch of ones of a shape; on numbers of words, if there are any."""
    return profile_by_rungs(lambda: (model(), torch.ones(shape, dtype=torch.long if words else None)), hints, 0)


def flops(found: RungProfile) -> float:
    return sum(it.forward_flops for it in found.layers)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, plain: bool) -> None:
        super().__init__()
        self.heads, self.plain = heads, plain
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        if self.plain:
            weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
            attended = functional.dropout(weights, 0.1) @ value
        else:
            attended = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(-2))
        return out


class Layer(nn.Module):
    """The layer of Korthikanti et al. 2022: every bias, dropout behind attention and MLP."""

    def __init__(self, width: int, heads: int, *, plain: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, plain=plain)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attention(self.first(x)), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.second(x)))), 0.1)


class Decoder(nn.Module):
    def __init__(self, layers: int = 3, *, plain: bool = False, tied: bool = False, again: bool = False) -> None:
        super().__init__()
        self.words, self.again = nn.Embedding(100, 64), again
        self.blocks = nn.ModuleList(Layer(64, 4, plain=plain) for _ in range(layers))
        self.head = nn.Linear(64, 100, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        logits: Tensor = self.head(x)
        return logits


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bsi,ijk->bsjk", x, self.weight)


class Last(nn.Module):
    """Gives the outputs of a recurrent network, not its state."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)[0]
        return output


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (lambda: nn.Conv2d(3, 16, 5, padding=2), (2, 3, 20, 30), 2 * 16 * 20 * 30 * 3 * 25),
        (lambda: nn.Conv2d(8, 16, 3, stride=2, groups=4), (2, 8, 21, 21), 2 * 16 * 10 * 10 * 2 * 9),
        (lambda: nn.Linear(32, 64), (4, 32), 2 * 32 * 64),
        (lambda: Last(nn.LSTM(16, 24, batch_first=True)), (2, 10, 16), 10 * 2 * 4 * 24 * (16 + 24)),
        (lambda: Last(nn.GRU(16, 24, batch_first=True)), (2, 10, 16), 10 * 2 * 3 * 24 * (16 + 24)),
        (lambda: Attention(32, 4, plain=True), (2, 10, 32), 4 * 2 * 10 * 32 * 32 + 4 * 10 * 10 * 32),
        (lambda: Attention(32, 4, plain=False), (2, 10, 32), 4 * 2 * 10 * 32 * 32 + 4 * 10 * 10 * 32),
        (Einsum, (2, 10, 8), 2 * 10 * 8 * 16 * 4),
    ],
    ids=["conv", "grouped conv", "linear", "lstm", "gru", "attention written out", "attention", "einsum"],
)
def test_forward_flops_of_a_sample_are_those_of_the_formula(
    model: Callable[[], nn.Module], shape: tuple[int, ...], expected: float
) -> None:
    found = profiled(model, *shape)
    assert found.rung == META
    assert flops(found) == expected


def test_a_backward_pass_of_products_costs_twice_their_forward_pass() -> None:
    found = profiled(lambda: nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 8)), 4, 32)
    first, second = found.layers
    assert second.backward_flops == 2 * second.forward_flops
    assert first.backward_flops == first.forward_flops  # the gradient of the input is not needed


def test_a_layer_keeps_what_korthikanti_prints() -> None:
    sequence, width, heads = 512, 1024, 16
    found = profiled(
        lambda: nn.Sequential(nn.Linear(width, width), *(Layer(width, heads) for _ in range(2))), 1, sequence, width
    )
    block = found.layers[1]
    assert block.heads == heads
    assert block.saved_bytes == pytest.approx(sequence * width * (34 + 5 * heads * sequence / width), rel=1e-3)


def test_flash_attention_keeps_no_matrix_of_sequence_by_sequence() -> None:
    long = profiled(lambda: Decoder(plain=False), 1, 1024, words=1).layers[1].saved_bytes
    short = profiled(lambda: Decoder(plain=False), 1, 512, words=1).layers[1].saved_bytes
    assert long == pytest.approx(2 * short, rel=1e-3)


def test_blocks_that_are_alike_count_as_if_each_were_run() -> None:
    three = profiled(lambda: Decoder(3), 2, 16, words=1)
    one = profiled(lambda: Decoder(1), 2, 16, words=1)
    assert [it.name for it in three.layers] == ["words", "blocks.0", "blocks.1", "blocks.2", "head"]
    block = three.layers[1]
    assert [it.is_block for it in three.layers] == [False, True, True, True, False]
    assert flops(three) == pytest.approx(flops(one) + 2 * block.forward_flops)
    assert three.layers[3].model_copy(update={"name": block.name}) == block
    assert sum(it.parameters for it in three.layers) == sum(it.numel() for it in Decoder(3).parameters())


def test_a_profile_is_that_of_the_plain_model_on_the_cpu() -> None:
    """FLOPs of the whole, counted by PyTorch around a step with weights and nothing replaced."""
    model, words = Decoder(2, plain=True), torch.zeros(2, 16, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        output = model(words)
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    found = profiled(lambda: Decoder(2, plain=True), 2, 16, words=1)
    assert 2 * flops(found) == forward.get_total_flops()
    assert 2 * sum(it.backward_flops for it in found.layers) == backward.get_total_flops()


def test_tied_weights_count_once_and_are_known_as_tied() -> None:
    layers = profiled(lambda: Decoder(tied=True), 1, 8, words=1).layers
    assert layers[0].parameters == 6400
    assert (layers[-1].parameters, layers[-1].tied_parameters) == (0, 6400)


def test_products_outside_of_all_layers_are_counted_in_a_layer_of_their_own() -> None:
    class Tied(Decoder):
        def forward(self, words: Tensor) -> Tensor:
            x: Tensor = self.blocks[0](self.words(words))
            return x @ self.words.weight.T

    layers = profiled(lambda: Tied(1), 1, 8, words=1).layers
    last = layers[-1]
    assert last.name == OUTSIDE
    assert last.forward_flops == 2 * 8 * 64 * 100
    assert last.backward_flops == 2 * last.forward_flops


def test_a_model_that_recomputes_by_itself_is_profiled_as_if_it_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = profiled(Decoder, 1, 8, words=1).layers
    monkeypatch.setitem(globals(), "checkpoint", rungs.call_without_checkpointing)
    assert profiled(lambda: Decoder(again=True), 1, 8, words=1).layers == plain


def test_figures_of_a_sample_do_not_hang_on_the_batch() -> None:
    one, four = (profiled(Decoder, samples, 16, words=1).layers for samples in (1, 4))
    for few, many in zip(one, four, strict=True):
        assert few.forward_flops == many.forward_flops
        assert few.saved_bytes == pytest.approx(many.saved_bytes, rel=0.01)


class Router(nn.Module):
    """Looks at values: it does not run without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y if y.sum().item() > 0 else -y


FAILURES: dict[str, Callable[[Tensor], Tensor]] = {
    "item": lambda x: x if x.sum().item() > 0 else -x,
    "boolean mask": lambda x: torch.cat([x[x > 0].sum().reshape(1)]) * x,
    "constant of another device": lambda x: x + torch.ones(8, device="cpu"),
    "nonzero": lambda x: x * len(torch.nonzero(x > 0)),
    "numpy": lambda x: x + float(x.detach().numpy().sum()),
    "branch": lambda x: x if x.sum() > 0 else -x,
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_without_weights_runs_on_the_cpu_and_names_the_reason(name: str) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return FAILURES[name](self.inner(x))

    found = profiled(lambda: nn.Sequential(nn.Linear(8, 8), Failing()), 3, 8)
    assert found.rung == CPU.format(1, 2)
    assert "does not run without weights: layer '1' (Failing)" in found.notes[0]
    assert flops(found) == 2 * 2 * 8 * 8


def test_the_cpu_counts_lstm_and_attention_as_the_meta_device_does() -> None:
    def model() -> nn.Module:
        return nn.Sequential(Last(nn.LSTM(8, 8, batch_first=True)), Attention(8, 2, plain=False))

    without = profiled(model, 2, 6, 8)
    really = profiled(lambda: nn.Sequential(*model().children(), Router()), 2, 6, 8)
    assert (without.rung, really.rung) == (META, CPU.format(1, 2))
    for a, b in zip(without.layers, really.layers, strict=False):
        assert a.forward_flops == b.forward_flops


def test_a_hint_stands_for_a_layer_that_cannot_be_run() -> None:
    found = profiled(lambda: nn.Sequential(nn.Linear(8, 8), Router(), nn.Linear(8, 8)), 3, 8, Router=HINT)
    assert found.rung == f"{META}, 1 layers by profile_hint"
    hinted = found.layers[1]
    assert (hinted.forward_flops, hinted.backward_flops) == (10.0, 20.0)
    assert (hinted.saved_bytes, hinted.output_bytes) == (20.0, 30.0)
    assert found.layers[2].forward_flops == 2 * 8 * 8


def test_lazy_layers_are_refused_with_what_to_do() -> None:
    with pytest.raises(BuildError, match="lazy layers"):
        profiled(lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()), 2, 3)


def test_if_no_rung_works_each_has_its_reason() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Any:
            raise ZeroDivisionError("of the model")

    with pytest.raises(BuildError) as error:
        profiled(lambda: nn.Sequential(Broken()), 3, 8)
    assert str(error.value).count("layer '0' (Broken): ZeroDivisionError: of the model") == 1  # not once for each rung
