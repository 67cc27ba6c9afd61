"""Decoders that learn to count, with and without a head that is their table of words."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, SEQUENCE, WIDTH = 31, 8, 16


class DecoderBlock(nn.Module):
    def __init__(self, dropped: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropped)
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * x.cumsum(1)
        added: Tensor = self.drop(self.down(functional.gelu(self.up(self.norm(x)))))
        return x + added


class Decoder(nn.Module):
    def __init__(self, *, tied: bool = False, dropped: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(DecoderBlock(dropped) for _ in range(5))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def loss(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def data(first: int, samples: int) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(first, first + samples)[:, None]
    counted = (numbers * 7 + (1 + numbers % 3) * torch.arange(SEQUENCE + 1)) % WORDS
    return counted[:, :-1], counted[:, 1:]


def build() -> tuple[nn.Module, Tensor, object, Tensor]:
    return Decoder(), *_example()


def tied() -> tuple[nn.Module, Tensor, object, Tensor]:
    return Decoder(tied=True), *_example()


def dropping() -> tuple[nn.Module, Tensor, object, Tensor]:
    return Decoder(dropped=0.1), *_example()


def _example() -> tuple[Tensor, object, Tensor]:
    batch, target = data(0, 1)
    return batch, loss, target
