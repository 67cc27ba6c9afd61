"""A GPT of a few million parameters that trains on a machine without GPUs: `make demo-plan` plans it and runs the plan.

It learns to count: the words after a first one go up by a step, round the vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, WORDS, SEQUENCE = 256, 4, 6, 2000, 128


class Block(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return activations of the shape of x: (batch, sequence, width)."""
        parts = self.project(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    """Words in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits, shape (batch, sequence, WORDS)."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean over all words."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def data(first: int, samples: int) -> tuple[Tensor, Tensor]:
    """Return samples of the training by their numbers: the same in every process and at any time."""
    numbers = torch.arange(first, first + samples)
    start, pace = numbers * 7919 % WORDS, 1 + numbers * 104_729 % 5
    counted = (start[:, None] + pace[:, None] * torch.arange(SEQUENCE + 1)) % WORDS
    return counted[:, :-1], counted[:, 1:]


def build() -> tuple[nn.Module, Tensor, object, Tensor]:
    """Return the model, an example batch of one sample, the loss, and an example target."""
    words, target = (torch.zeros(1, SEQUENCE, dtype=torch.long) for _ in range(2))
    return Gpt(), words, loss, target
