"""The networks in PyTorch: `mlp` (the patent's five layers), `set` (one scorer for all nodes), and `layers`."""

import itertools
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from ..learned.network import Network, ObservationLayout

if TYPE_CHECKING:
    from ..learned.schema import Schema


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


LAYERS = (256, 196, 196, 128)  # SPEC R3


class MlpNetwork(Network):
    """Value network 256-196-196-128-1 and policy network 256-196-196-128-N, for one cluster size.

    Source: SPEC R3.
    """

    any_size = False

    def __init__(self, layout: ObservationLayout) -> None:
        super().__init__(layout)
        inputs = layout.globals + layout.items * layout.features
        actions = layout.actions + int(layout.waiting)
        self.policy = nn.Sequential(_mlp_stack((inputs, *LAYERS)), nn.Linear(LAYERS[-1], actions))
        self.value = nn.Sequential(_mlp_stack((inputs, *LAYERS)), nn.Linear(LAYERS[-1], 1))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions) and values of shape (batch,)."""
        return self.policy(observation), self.value(observation).squeeze(-1)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(observation).squeeze(-1)
        return values


def _mlp_stack(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), Tanh()]
    return nn.Sequential(*layers)


class SetNetwork(Network):
    """One small scorer for every item with the pooled others as context: any number of items, one set of weights.

    Items are embedded alike; their mean and maximum and the global features are the context; an item's logit comes
    from its own features, its embedding and the context. Waiting's logit and the value come from the context alone.
    """

    def __init__(self, layout: ObservationLayout, width: int = 64) -> None:
        super().__init__(layout, width)
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

    def _embed_items(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layout = self.layout
        items = observation[:, layout.globals :].reshape(observation.shape[0], -1, layout.features)
        embedded = tanh(self.item(items))
        pooled = torch.cat((observation[:, : layout.globals], embedded.mean(1), embedded.amax(1)), 1)
        return items, embedded, pooled

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions) and values of shape (batch,)."""
        items, embedded, pooled = self._embed_items(observation)
        context = self.context(pooled)
        mixed = tanh(self.mix_item(embedded) + self.mix_context(context).unsqueeze(1))
        logits = (self.score(mixed) + self.direct(items)).squeeze(-1)
        if self.layout.waiting:
            logits = torch.cat((logits, self.wait(context)), 1)
        return logits, self.value(pooled).squeeze(-1)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(self._embed_items(observation)[2]).squeeze(-1)
        return values


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "leaky_relu": nn.LeakyReLU, "silu": nn.SiLU, "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
}  # fmt: skip
USUAL = (64, 64)  # Stable-Baselines3's own


class LayersNetwork(Network):
    """Policy and value network of fully connected layers each, for one cluster size.

    Args:
        layout: How it reads an observation.
        policy: Units of each hidden layer of the policy network.
        value: Of the value network.
        activation: A name of ACTIVATIONS.
    """

    actions = ("node", "gpu", "candidate")
    any_size = False

    def __init__(
        self,
        layout: ObservationLayout,
        policy: tuple[int, ...] = USUAL,
        value: tuple[int, ...] = USUAL,
        activation: str = "tanh",
    ) -> None:
        super().__init__(layout)
        inputs = layout.globals + layout.items * layout.features
        self.policy = _layers_stack((inputs, *policy, layout.actions + int(layout.waiting)), activation)
        self.value = _layers_stack((inputs, *value, 1), activation)

    @classmethod
    def made_for(cls, schema: "Schema", layout: ObservationLayout, *width: int) -> Self:
        """Return an untrained network with the layers of a schema."""
        del width
        layers = schema.layers
        return cls(layout) if layers is None else cls(layout, layers.policy, layers.value, layers.activation)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions) and values of shape (batch,)."""
        return self.policy(observation), self.value(observation).squeeze(-1)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(observation).squeeze(-1)
        return values


def _layers_stack(sizes: tuple[int, ...], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
