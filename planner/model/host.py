"""A host profile: what ranks of one machine without GPUs do in a second, measured on it.

Several ranks may share a core. How fast one is then hangs on how many are busy, and is measured too.

Source: SPEC P1.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .hardware import Accuracy

MOST_RANKS = 64
NUMBER_BYTES = 4.0  # of a weight, a gradient or an activation: no machine without GPUs trains in fewer
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Speed = Annotated[float, Field(gt=0, le=10)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LayerRates(_Section):
    """What a layer takes, in seconds for each of its figures; one way, for a rank that is alone."""

    flop_s: Seconds  # for a FLOP of matrix products
    kept_byte_s: Seconds  # for a byte that is kept for the way back: functions of each number write and read these
    parameter_s: Seconds  # for a parameter, whatever the micro-batch: weights are read, gradients added
    layer_s: Seconds  # for the launches of a decoder layer


class Exchange(_Section):
    """What it takes to send, or to sum over members."""

    members: Annotated[int, Field(ge=2, le=MOST_RANKS)]
    start_s: Seconds
    byte_s: Seconds  # for a byte of the tensor


class HostProfile(_Section):
    """A host profile as its file has it; see docs/planner.md."""

    format: Literal["longshore-host-1"] = "longshore-host-1"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    cores: Count
    memory_bytes: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
    forward: LayerRates
    backward: LayerRates
    # Of one rank where one, two, three and so on are busy; the first is 1.
    speeds: Annotated[tuple[Speed, ...], Field(strict=False, min_length=1, max_length=MOST_RANKS)]
    send: Exchange
    reduce: Annotated[tuple[Exchange, ...], Field(strict=False)]  # for two members, three and so on
    update_start_s: Seconds  # of the optimizer's step
    update_parameter_s: Seconds
    accuracy: Accuracy  # of the time of layers that the rates were not fitted to

    @model_validator(mode="after")
    def _agrees(self) -> "HostProfile":
        if [it.members for it in self.reduce] != list(range(2, self.ranks + 1)):
            raise ValueError(f"reduce should have 2 to {self.ranks} members in order, as there are {self.ranks} speeds")
        return self

    @property
    def ranks(self) -> int:
        """Ranks that it was measured with."""
        return len(self.speeds)

    def reduce_s(self, members: int, volume_bytes: float) -> float:
        """Return the time in which so many members sum a tensor, if nobody else is busy."""
        if members == 1:
            return 0.0
        found = self.reduce[members - 2]
        return found.start_s + found.byte_s * volume_bytes

    def send_s(self, volume_bytes: float) -> float:
        """Return the time in which a tensor reaches the next stage."""
        return self.send.start_s + self.send.byte_s * volume_bytes

    def update_s(self, parameters: float) -> float:
        """Return the time of the optimizer, for a rank that is alone."""
        return self.update_start_s + self.update_parameter_s * parameters
