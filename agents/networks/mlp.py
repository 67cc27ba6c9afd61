"""The network `mlp`: the patent's five layers, over all GPUs or nodes at once."""

import itertools

from torch import Tensor, nn

from ..learned.network import Layout, Network
from .activations import Tanh

LAYERS = (256, 196, 196, 128)  # SPEC R3


class MlpNetwork(Network):
    """Value network 256-196-196-128-1 and policy network 256-196-196-128-N, for one cluster size.

    Source: SPEC R3.
    """

    any_size = False

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        inputs = layout.globals + layout.items * layout.features
        actions = layout.actions + int(layout.waiting)
        self.policy = nn.Sequential(_stack((inputs, *LAYERS)), nn.Linear(LAYERS[-1], actions))
        self.value = nn.Sequential(_stack((inputs, *LAYERS)), nn.Linear(LAYERS[-1], 1))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions) and values of shape (batch,)."""
        return self.policy(observation), self.value(observation).squeeze(-1)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(observation).squeeze(-1)
        return values


def _stack(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), Tanh()]
    return nn.Sequential(*layers)
