"""A decoder of 7 billion parameters without weights: `longshore plan find examples/plan/llama7b.py:build`."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, HIDDEN, LAYERS, WORDS, SEQUENCE = 4096, 32, 11_008, 32, 32_000, 2048


class Block(nn.Module):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return activations of the shape of x: (batch, sequence, width)."""
        normed = self.before_attention(x)
        query, key, value = (
            project(normed).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        normed = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    """Words in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits, shape (batch, sequence, WORDS)."""
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build() -> tuple[nn.Module, Tensor]:
    """Return the model and an example batch of one sample."""
    return Decoder(), torch.zeros(1, SEQUENCE, dtype=torch.long)
