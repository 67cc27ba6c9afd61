"""Models with parameters that are frozen, never used, used in some steps alone, sparse, complex or transposed."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, WORDS = 6, 29


class Odd(nn.Module):
    def __init__(self, *, mixed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=mixed)
        self.frozen, self.body = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.branch, self.last, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(requires_grad=False)
        if not mixed:
            self.words.weight.requires_grad = False
        self.mixed = mixed
        if mixed:
            self.waves = nn.Parameter(torch.ones(4, dtype=torch.complex64))
            self.across = nn.Parameter(torch.ones(WIDTH, WIDTH).tril().t())
            self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, words: Tensor) -> Tensor:
        x = torch.tanh(self.frozen(self.words(words).mean(1)))
        x = torch.tanh(self.body(x))
        if not self.mixed:
            found: Tensor = self.last(self.branch(x))
            return found
        if bool((words[:, 0] == 1).any()):  # in some steps, and there on some replicas
            x = x + self.branch(x) * (words[:, :1] == 1)
        x = torch.fft.irfft(torch.fft.rfft(functional.linear(x, self.across)) * self.waves, n=WIDTH)
        mixed: Tensor = self.last(x) + self.nothing.sum()
        return mixed


def data(first: int, samples: int) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(first, first + samples)[:, None]
    words = (numbers * torch.arange(1, 4)) % WORDS
    return words, words.sum(1, keepdim=True) / WORDS


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def frozen() -> tuple[nn.Module, Tensor, object, Tensor]:
    return Odd(mixed=False), *_example()


def mixed() -> tuple[nn.Module, Tensor, object, Tensor]:
    return Odd(mixed=True), *_example()


def _example() -> tuple[Tensor, object, Tensor]:
    batch, target = data(0, 1)
    return batch, functional.mse_loss, target
