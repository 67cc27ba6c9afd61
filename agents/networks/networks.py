"""Actor-critic networks: the source's five layers, and one scorer shared by all GPUs or nodes."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

SOURCE_LAYERS = (256, 196, 196, 128)  # SPEC R3
LARGEST = 1e30  # a logit or a value that is gone by: weights that are finite can still overflow


class _SigmoidTanh(torch.autograd.Function):
    """The hyperbolic tangent as 2 sigmoid(2x) - 1.

    It is off by 2e-7 at most. torch.tanh takes four times as long and was half of a network's time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = (2.0 * x).sigmoid_().mul_(2.0).sub_(1.0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        slope: Tensor = torch.ops.aten.tanh_backward(gradient, y)
        return slope


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of every element."""
    y: Tensor = _SigmoidTanh.apply(x)  # type: ignore[no-untyped-call]
    return y


class Tanh(nn.Module):
    """`tanh` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the hyperbolic tangent of every element."""
        return tanh(x)


class Layout(NamedTuple):
    """How a network reads an observation and what it answers."""

    globals: int  # features of the decision as a whole, first in the observation
    items: int  # GPUs or nodes, which follow one by one
    features: int  # features of each
    actions: int  # GPUs or nodes that can be chosen
    waiting: bool  # one more action at the end


def _stack(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), Tanh()]
    return nn.Sequential(*layers)


class MlpNetwork(nn.Module):
    """Value network 256-196-196-128-1 and policy network 256-196-196-128-N, for one cluster size.

    Source: SPEC R3.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        inputs = layout.globals + layout.items * layout.features
        actions = layout.actions + int(layout.waiting)
        self.policy = nn.Sequential(_stack((inputs, *SOURCE_LAYERS)), nn.Linear(SOURCE_LAYERS[-1], actions))
        self.value = nn.Sequential(_stack((inputs, *SOURCE_LAYERS)), nn.Linear(SOURCE_LAYERS[-1], 1))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions) and values of shape (batch,)."""
        return self.policy(observation), self.value(observation).squeeze(-1)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(observation).squeeze(-1)
        return values


class SetNetwork(nn.Module):
    """One small scorer for every item with the pooled others as context: any number of items, one set of weights.

    Items are embedded alike; their mean and maximum and the global features are the context; an item's logit comes
    from its own features, its embedding and the context. Waiting's logit and the value come from the context alone.
    """

    def __init__(self, layout: Layout, width: int = 64) -> None:
        super().__init__()
        self.layout, self.width = layout, width
        self.item = nn.Linear(layout.features, width)
        self.context = nn.Sequential(nn.Linear(layout.globals + 2 * width, width), Tanh())
        self.mix_item = nn.Linear(width, width)
        self.mix_context = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1)
        self.direct = nn.Linear(layout.features, 1, bias=False)
        self.wait = nn.Linear(width, 1)
        self.value = nn.Sequential(
            nn.Linear(layout.globals + 2 * width, width), Tanh(), nn.Linear(width, width), Tanh(), nn.Linear(width, 1)
        )
        with torch.no_grad():
            for layer in (self.score, self.direct, self.wait):
                layer.weight *= 0.1  # a nearly uniform policy to begin with

    def _embed(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layout = self.layout
        items = observation[:, layout.globals :].reshape(observation.shape[0], -1, layout.features)
        embedded = tanh(self.item(items))
        pooled = torch.cat((observation[:, : layout.globals], embedded.mean(1), embedded.amax(1)), 1)
        return items, embedded, pooled

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions) and values of shape (batch,)."""
        items, embedded, pooled = self._embed(observation)
        context = self.context(pooled)
        mixed = tanh(self.mix_item(embedded) + self.mix_context(context).unsqueeze(1))
        logits = (self.score(mixed) + self.direct(items)).squeeze(-1)
        if self.layout.waiting:
            logits = torch.cat((logits, self.wait(context)), 1)
        return logits, self.value(pooled).squeeze(-1)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(self._embed(observation)[2]).squeeze(-1)
        return values


class CandidateNetwork(nn.Module):
    """One scorer for every candidate, which also reads the list's mean and its first candidate, the base heuristic's.

    Two layers for each candidate, of which the first also reads the context; a candidate's logit comes from them, the
    value from the context alone by layers of its own, so that neither changes by what the other learns. Rectified
    rather than curved, so that the compiled forward pass (agents/learned/forward.py) is short.
    """

    def __init__(self, layout: Layout, width: int = 128) -> None:
        super().__init__()
        self.layout = layout
        self.item = nn.Linear(layout.features, width, bias=False)
        self.context = nn.Linear(layout.globals + 2 * layout.features, width)
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.value = nn.Sequential(
            nn.Linear(layout.globals + 2 * layout.features, width), nn.ReLU(), nn.Linear(width, 1)
        )
        with torch.no_grad():
            self.score.weight *= 0.1  # a nearly uniform policy to begin with

    def _context(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the candidates' features, and what is known of the decision as a whole."""
        layout = self.layout
        items = observation[:, layout.globals :].reshape(observation.shape[0], -1, layout.features)
        # The first feature is 1 where the list has a candidate, and all are 0 elsewhere.
        mean = items.sum(1) / items[:, :, :1].sum(1).clamp(min=1.0)
        return items, torch.cat((observation[:, : layout.globals], mean, items[:, 0]), 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, candidates) and values of shape (batch,)."""
        items, context = self._context(observation)
        hidden = (self.item(items) + self.context(context).unsqueeze(1)).relu()
        logits = self.score(self.hidden(hidden).relu()).squeeze(-1)
        return logits, self.value(context).squeeze(-1)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(self._context(observation)[1]).squeeze(-1)
        return values


MOST_MEMBERS = 16  # networks that are looked for in a mean
# Parameters with a row for each unit of a member, and with a column.
BY_ROW = ("item.weight", "context.weight", "context.bias", "hidden.bias", "value.0.weight", "value.0.bias")
BY_COLUMN = ("score.weight", "value.2.weight")


def mean_of(networks: Sequence[CandidateNetwork]) -> CandidateNetwork:
    """Return one network whose outputs are the means of several's: their units stand side by side."""
    count, width = len(networks), sum(network.hidden.in_features for network in networks)
    mean = CandidateNetwork(networks[0].layout, width)

    def joined(name: str) -> list[Tensor]:
        return [network.get_parameter(name) for network in networks]

    with torch.no_grad():
        for name in BY_ROW:
            mean.get_parameter(name).copy_(torch.cat(joined(name)))
        mean.hidden.weight.copy_(torch.block_diag(*joined("hidden.weight")))  # type: ignore[no-untyped-call]
        for name in BY_COLUMN:
            mean.get_parameter(name).copy_(torch.cat(joined(name), dim=1) / count)
        mean.get_parameter("value.2.bias").copy_(torch.stack(joined("value.2.bias")).mean(0))
    return mean


def members_of(network: CandidateNetwork) -> int:
    """Return of how many networks of equal width one may be the mean, as `mean_of` makes it; 1 if of no others."""
    hidden = network.hidden.weight.detach()
    width = hidden.shape[0]
    for count in range(MOST_MEMBERS, 1, -1):
        block = torch.arange(width) // max(width // count, 1)
        if width % count == 0 and not hidden[block[:, None] != block].any():
            return count
    return 1


def member_of(mean: CandidateNetwork, number: int) -> CandidateNetwork:
    """Return one of the networks that `mean_of` joined; its value has the offset of their mean."""
    count = members_of(mean)
    width = mean.hidden.in_features // count
    part = slice(number * width, (number + 1) * width)
    network = CandidateNetwork(mean.layout, width)
    with torch.no_grad():
        for name in BY_ROW:
            network.get_parameter(name).copy_(mean.get_parameter(name)[part])
        network.hidden.weight.copy_(mean.hidden.weight[part, part])
        for name in BY_COLUMN:
            network.get_parameter(name).copy_(mean.get_parameter(name)[:, part] * count)
        network.get_parameter("value.2.bias").copy_(mean.get_parameter("value.2.bias"))
    return network


Network = MlpNetwork | SetNetwork | CandidateNetwork
NETWORKS: dict[str, type[MlpNetwork] | type[SetNetwork] | type[CandidateNetwork]] = {
    "mlp": MlpNetwork,
    "set": SetNetwork,
    "candidates": CandidateNetwork,
}
