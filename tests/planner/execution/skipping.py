"""A model that is hard to cut: each block needs an argument, and a value and a parameter skip the blocks.

It takes named arguments, computes its loss itself, and has an optimizer of its own.
"""

import torch
from torch import Tensor, nn

WIDTH = 6


class DecoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + torch.tanh(self.mix(x)) * scale


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(DecoderBlock() for _ in range(4))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, scale: Tensor, wanted: Tensor) -> Tensor:
        first = x = self.first(x) * self.gain
        for block in self.blocks:
            x = block(x, scale)
        found: Tensor = self.last(x * self.gain + first).squeeze(-1)
        return (found - wanted).square().mean()


def data(first: int, samples: int) -> dict[str, Tensor]:
    numbers = torch.arange(first, first + samples)[:, None]
    x = torch.sin(numbers * (1.0 + torch.arange(WIDTH)))
    return {"x": x, "scale": torch.cos(numbers + 0.5), "wanted": x.sum(1)}


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def build() -> tuple[nn.Module, dict[str, Tensor]]:
    return Skipping(), data(0, 1)
