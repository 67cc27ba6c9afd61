"""A profile of recorded calls: figures for one sample, and a name for how they were measured.

Source: SPEC P1.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from .layers import LayerProfile
from .recording import Call, Figures

DECODER_PRODUCTS = 6.0  # of a decoder layer: three projections, attention, the fourth projection, and two of the MLP
ADDED = tuple(it.name for it in fields(Figures) if it.name not in ("heads", "products"))  # what samples add up to


class UnlikeError(Exception):
    """Two recordings of one model that are not of the same layers."""


class Batches(NamedTuple):
    """A step that was recorded once at a batch size, or at two."""

    calls: Sequence[Call]
    samples: int
    more: Sequence[Call] = ()  # with twice as many samples, for what a sample adds


def layer_profiles(recorded: Batches) -> list[LayerProfile]:
    """Return the layers of a recorded step, for one sample.

    Raises:
        UnlikeError: If two recordings do not have the same layers.
    """
    if recorded.more and [it.name for it in recorded.more] != [it.name for it in recorded.calls]:
        twice = 2 * recorded.samples
        raise UnlikeError(f"the model runs other layers with {twice} samples than with {recorded.samples}")
    if recorded.more:
        pairs = zip(recorded.calls, recorded.more, strict=True)
        return [_layer(call, _added(call.figures, other.figures, recorded.samples)) for call, other in pairs]
    return [_layer(call, _shared(call.figures, recorded.samples)) for call in recorded.calls]


def _added(one: Figures, two: Figures, samples: int) -> dict[str, float]:
    """Return what each of so many more samples adds; of what does not grow with samples, nothing."""
    return {name: max(0.0, getattr(two, name) - getattr(one, name)) / samples for name in ADDED}


def _shared(figures: Figures, samples: int) -> dict[str, float]:
    return {name: getattr(figures, name) / samples for name in ADDED}


def _layer(call: Call, per_sample: dict[str, float]) -> LayerProfile:
    is_decoder = call.is_block and call.figures.heads > 0
    return LayerProfile(
        name=call.name[-300:],
        kind=call.kind[:300],
        **call.weights._asdict(),
        heads=call.figures.heads,
        is_block=call.is_block,
        fixed_costs=1.0 if is_decoder else call.figures.products / DECODER_PRODUCTS,
        **per_sample,
    )
