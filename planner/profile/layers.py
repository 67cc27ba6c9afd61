"""What a profile says of a model: a row for each layer, in the order in which they run.

Source: SPEC P1.
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

MOST_LAYERS = 10_000
Amount = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=300)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LayerProfile(_Part):
    """One layer: the smallest part of a model that a pipeline stage may hold. All but parameters is for one sample."""

    name: Text
    kind: Text = ""
    forward_flops: Amount
    backward_flops: Amount
    parameters: Amount  # that no earlier layer has
    frozen_parameters: Amount = 0.0  # of these, what is not trained
    frozen_bytes: Amount = 0.0  # of these, and of buffers
    tied_parameters: Amount = 0.0  # trained ones that an earlier layer has too: on another stage it needs a copy
    tied_frozen_bytes: Amount = 0.0  # the same of what is not trained
    saved_bytes: Amount  # that the forward pass keeps for the backward pass
    input_elements: Amount
    output_bytes: Amount  # what crosses the network if the pipeline is cut behind it
    heads: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # of its attention; 0 for none
    is_block: bool = False  # one of several alike: it may be computed again in place of being kept
    fixed_costs: Amount = 0.0  # launches of kernels, in those of one decoder layer


class ModelProfile(_Part):
    """What a model computes, keeps and sends for each sample."""

    name: Text
    rung: Text  # how it was measured
    tokens_per_sample: Annotated[float, Field(gt=0, le=1e12)]
    layers: Annotated[tuple[LayerProfile, ...], Field(min_length=1, max_length=MOST_LAYERS)]
    notes: tuple[Text, ...] = ()  # what its reader should know
    least_samples: Annotated[int, Field(ge=1)] = 1  # that it can train on at a time

    @property
    def parameters(self) -> float:
        """Parameters of the whole model, tied ones once."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def trained_parameters(self) -> float:
        """Of these, what training changes."""
        return sum(layer.parameters - layer.frozen_parameters for layer in self.layers)

    @property
    def forward_flops(self) -> float:
        """FLOPs of one forward pass of one sample."""
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def heads(self) -> int:
        """A number that divides the attention heads of all layers, 0 if the model has no attention."""
        return int(np.gcd.reduce([layer.heads for layer in self.layers]))

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one figure of all layers, shape (layers,)."""
        return np.array([getattr(layer, name) for layer in self.layers], dtype=np.float64)
