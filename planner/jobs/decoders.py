"""Decoders (GPT and its kin) by their shapes, in a YAML file, and their profiles by the formulas that are printed.

One layer has 24 s h^2 + 4 s^2 h forward FLOPs for a sample, 12 h^2 parameters, and keeps 34 s h bytes with an attention
that keeps no matrix of sequence x sequence (Korthikanti and others 2022). The head has 2 s h V FLOPs.

Source: SPEC P1.
"""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...cluster.files.yaml_file import read_yaml, validated
from ..model.step_time import NUMBER_BYTES
from ..profile.layers import LayerProfile, ModelProfile

KEPT = 34.0  # bytes that a layer keeps for each number of its activation
Size = Annotated[int, Field(ge=1, le=1_000_000)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Decoder(_Section):
    """A decoder and the batch that it is trained with."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    layers: Annotated[int, Field(ge=1, le=1000)]
    hidden: Size
    heads: Size
    batch: Size  # samples of an iteration, on all GPUs together
    sequence: Size = 2048  # tokens of a sample
    vocabulary: Size = 51_200

    @model_validator(mode="after")
    def _heads_divide_the_hidden_size(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"{self.heads} heads do not divide the hidden size {self.hidden}")
        return self

    @property
    def profile(self) -> ModelProfile:
        """What its layers compute, keep and send."""
        s, h, v = float(self.sequence), float(self.hidden), float(self.vocabulary)
        width, words = s * h, NUMBER_BYTES * s * h
        first = _layer("words", 0.0, v * h, 8.0 * s, s, words)
        block = _layer("block", 24.0 * s * h**2 + 4.0 * s**2 * h, 12.0 * h**2, KEPT * width, width, words)
        block = block.model_copy(update={"heads": self.heads, "is_block": True, "fixed_costs": 1.0})
        head = _layer("head", 2.0 * s * h * v, 0.0, NUMBER_BYTES * width, width, NUMBER_BYTES * s * v)
        head = head.model_copy(update={"tied_parameters": v * h})
        blocks = (block.model_copy(update={"name": f"block.{number}"}) for number in range(self.layers))
        return ModelProfile(name=self.name, rung="by formula", tokens_per_sample=s, layers=(first, *blocks, head))


class ModelsFile(_Section):
    """A file of models; see docs/planner.md."""

    models: Annotated[tuple[Decoder, ...], Field(min_length=1, max_length=100, strict=False)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [it.name for it in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models are called {name}")
        return self


def _layer(name: str, flops: float, parameters: float, kept: float, elements: float, output: float) -> LayerProfile:
    return LayerProfile(
        name=name, forward_flops=flops, backward_flops=2.0 * flops, parameters=parameters, saved_bytes=kept,
        input_elements=elements, output_bytes=output,
    )  # fmt: skip


def read_models(path: Path) -> tuple[Decoder, ...]:
    """Return the models of a file.

    Raises:
        InputError: If it cannot be used.
    """
    file = read_yaml(path, "docs/planner.md")
    return validated(file, ModelsFile, file.data).models
