"""A model whose activations need more memory than its optimizer, as large models do: layers of many functions."""

import torch
from torch import Tensor, nn

# Tensors of weights have more than 32 MiB, as those of large models: a heap never keeps such once they are freed.
WIDTH, LAYERS, FUNCTIONS = 4096, 6, 12


class Layer(nn.Module):
    """A product, and functions of each number, which keep as much each."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return activations of the shape of x: (samples, WIDTH)."""
        found: Tensor = self.product(x)
        for _ in range(FUNCTIONS):
            found = torch.tanh(found) * 1.5
        return x + found


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over all samples."""
    return (output - target).square().mean()


def data(first: int, samples: int) -> tuple[Tensor, Tensor]:
    """Return samples of the training by their numbers."""
    numbers = torch.arange(first, first + samples, dtype=torch.float32)[:, None] + torch.arange(WIDTH) / WIDTH
    return numbers.sin(), numbers.cos()


def build() -> tuple[nn.Module, Tensor, object, Tensor]:
    """Return the model, an example batch of one sample, the loss, and an example target."""
    return nn.Sequential(*(Layer() for _ in range(LAYERS))), torch.zeros(1, WIDTH), loss, torch.zeros(1, WIDTH)
