"""What a user says of a layer that cannot be run without weights: `profile_hint` in the file of the model.

Source: SPEC P1.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from .layers import Amount


class Hint(BaseModel):
    """Figures of a layer for one sample; its output has the shape of its first input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    forward_flops: Amount
    saved_bytes: Amount
    output_bytes: Amount
    backward_flops: Amount | None = None  # twice the forward ones if left out


def hint_for(hints: Mapping[str, Hint], name: str, kind: str) -> Hint | None:
    """Return the hint for a layer by its name, or else by its class; None if there is none."""
    return hints.get(name) or hints.get(kind)
