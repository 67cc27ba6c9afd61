"""The network `set`: one small scorer shared by all GPUs or nodes, so for clusters of any size."""

import torch
from torch import Tensor, nn

from ..learned.network import Layout, Network
from .activations import Tanh, tanh


class SetNetwork(Network):
    """One small scorer for every item with the pooled others as context: any number of items, one set of weights.

    Items are embedded alike; their mean and maximum and the global features are the context; an item's logit comes
    from its own features, its embedding and the context. Waiting's logit and the value come from the context alone.
    """

    def __init__(self, layout: Layout, width: int = 64) -> None:
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
