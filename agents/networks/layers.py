"""The network `layers`: fully connected layers of any number and width, as Stable-Baselines3's MlpPolicy has them."""

import itertools
from typing import TYPE_CHECKING, Self

from torch import Tensor, nn

from ..learned.network import Layout, Network

if TYPE_CHECKING:
    from ..learned.schema import Schema

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
        self, layout: Layout, policy: tuple[int, ...] = USUAL, value: tuple[int, ...] = USUAL, activation: str = "tanh"
    ) -> None:
        super().__init__(layout)
        inputs = layout.globals + layout.items * layout.features
        self.policy = _stack((inputs, *policy, layout.actions + int(layout.waiting)), activation)
        self.value = _stack((inputs, *value, 1), activation)

    @classmethod
    def made_for(cls, schema: "Schema", layout: Layout, *width: int) -> Self:
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


def _stack(sizes: tuple[int, ...], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
