"""Hardware profiles and their files: the constants of the step-time model, or the rates of a machine without GPUs.

Source: SPEC P1.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from ..cluster.files.errors import InputError
from ..cluster.files.output_file import write_text
from ..cluster.files.yaml_file import read_yaml, validated, yaml_text
from .step_time import Constants

Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


class MeasuredHardware(BaseModel, frozen=True, extra="forbid", strict=True):
    """The datasheet of the GPUs and the network on which the runs were measured."""

    peak_flops: Positive = 312e12  # of one GPU: an A100 in bf16, without sparsity
    memory_bytes_per_s: Positive = 1.5e12  # of one GPU
    intra_bytes_per_s: Positive = 300e9  # between two GPUs of a node: NVLink of an A100
    nic_bytes_per_s: Positive = 25e9  # of a node: 200 Gbit/s
    gpus_per_node: Annotated[int, Field(ge=1, le=1_000_000)] = 8


def scaled_to_bandwidths(
    constants: Constants, measured: MeasuredHardware, intra_bytes_per_s: float, nic_bytes_per_s: float
) -> Constants:
    """Return constants for GPUs with other bandwidths, inside and across nodes: shares of the datasheet's stay."""
    inside, across = intra_bytes_per_s / measured.intra_bytes_per_s, nic_bytes_per_s / measured.nic_bytes_per_s
    return constants._replace(
        tensor_bytes_per_s=constants.tensor_bytes_per_s * inside,
        inside_bytes_per_s=constants.inside_bytes_per_s * inside,
        across_bytes_per_s=constants.across_bytes_per_s * across,
    )


class FittedConstants(BaseModel, frozen=True, extra="forbid", strict=True):
    """The constants in a file."""

    efficiency: Annotated[float, Field(gt=0, le=10)]
    half_elements: Positive
    tensor_bytes_per_s: Positive
    inside_bytes_per_s: Positive
    across_bytes_per_s: Positive
    layer_s: Positive
    tensor_layer_s: Positive
    iteration_s: Positive


class Accuracy(BaseModel, frozen=True, extra="forbid", strict=True):
    """The error of predictions for runs that were not in the fit."""

    runs: Annotated[int, Field(ge=1)]
    mean_error: Annotated[float, Field(ge=0)]  # mean of |predicted / measured - 1|
    bias: float  # mean of predicted / measured - 1
    bound_share: Share  # of runs that the bound covers
    bound_factor: Positive  # the bound is the predicted time times this


class HardwareProfile(BaseModel, frozen=True, extra="forbid", strict=True):
    """A hardware profile, in the format of its file; see docs/planner.md."""

    format: Literal["longshore-hardware-1"] = "longshore-hardware-1"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    measured_on: MeasuredHardware = MeasuredHardware()
    constants: FittedConstants
    not_identified: Annotated[tuple[str, ...], Field(strict=False)] = ()  # constants that the runs do not determine
    accuracy: Accuracy

    @property
    def as_constants(self) -> Constants:
        """The constants on the hardware that they were measured on."""
        return Constants(**self.constants.model_dump())


# The result of `longshore plan calibrate` for half of the 109 multi-node runs of Megatron-DeepSpeed on A100 that
# vTrain published (MIT licence): 54 runs on 64 to 512 GPUs. `make bench-planner` fits them again and compares.
DEFAULT = HardwareProfile(
    name="A100, Megatron-DeepSpeed, 64 to 512 GPUs",
    constants=FittedConstants(
        efficiency=0.746, half_elements=0.237e6, tensor_bytes_per_s=130e9, inside_bytes_per_s=99.9e9,
        across_bytes_per_s=10.1e9, layer_s=2.66e-3, tensor_layer_s=0.659e-3, iteration_s=5.1e-3,
    ),
    not_identified=("inside_bytes_per_s", "iteration_s"),
    accuracy=Accuracy(runs=54, mean_error=0.095, bias=-0.029, bound_share=0.9, bound_factor=1.25),
)  # fmt: skip


MAX_HOST_RANKS = 64
HOST_NUMBER_BYTES = 4.0  # of a weight, a gradient or an activation: no machine without GPUs trains in fewer
HostSeconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Speed = Annotated[float, Field(gt=0, le=10)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class LayerRates(BaseModel, frozen=True, extra="forbid", strict=True):
    """Times of a layer per unit of its figures, one way, for a single busy rank."""

    flop_s: HostSeconds  # for a FLOP of matrix products
    kept_byte_s: (
        HostSeconds  # for a byte that is kept for the backward pass: elementwise functions write and read these
    )
    parameter_s: HostSeconds  # for a parameter, whatever the micro-batch: weights are read, gradients added
    layer_s: HostSeconds  # for the launches of a decoder layer


class ExchangeCost(BaseModel, frozen=True, extra="forbid", strict=True):
    """The time to send, or to sum over members."""

    members: Annotated[int, Field(ge=2, le=MAX_HOST_RANKS)]
    start_s: HostSeconds
    byte_s: HostSeconds  # for a byte of the tensor


class HostProfile(BaseModel, frozen=True, extra="forbid", strict=True):
    """A host profile, in the format of its file; see docs/planner.md."""

    format: Literal["longshore-host-1"] = "longshore-host-1"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    cores: Count
    memory_bytes: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
    forward: LayerRates
    backward: LayerRates
    # Of one rank where one, two, three and so on are busy; the first is 1.
    speeds: Annotated[tuple[Speed, ...], Field(strict=False, min_length=1, max_length=MAX_HOST_RANKS)]
    send: ExchangeCost
    reduce: Annotated[tuple[ExchangeCost, ...], Field(strict=False)]  # for two members, three and so on
    update_start_s: HostSeconds  # of the optimizer's step
    update_parameter_s: HostSeconds
    accuracy: Accuracy  # of the time of layers that the rates were not fitted to

    @model_validator(mode="after")
    def _reduces_match_speeds(self) -> "HostProfile":
        if [cost.members for cost in self.reduce] != list(range(2, self.ranks + 1)):
            raise ValueError(f"reduce should have 2 to {self.ranks} members in order, as there are {self.ranks} speeds")
        return self

    @property
    def ranks(self) -> int:
        """Ranks that it was measured with."""
        return len(self.speeds)

    def reduce_s(self, members: int, volume_bytes: float) -> float:
        """Return the time in which N members sum a tensor, if no other rank is busy."""
        if members == 1:
            return 0.0
        found = self.reduce[members - 2]
        return found.start_s + found.byte_s * volume_bytes

    def send_s(self, volume_bytes: float) -> float:
        """Return the time in which a tensor reaches the next stage."""
        return self.send.start_s + self.send.byte_s * volume_bytes

    def update_s(self, parameters: float) -> float:
        """Return the time of the optimizer, for a single busy rank."""
        return self.update_start_s + self.update_parameter_s * parameters


PROFILE_HEAD = (
    "# A profile for `longshore plan find --hardware`, by `longshore plan calibrate`. Units are in the names.\n"
)
HOST_PROFILE_HEAD = PROFILE_HEAD.replace("calibrate", "measure")


def read_hardware(path: Path) -> HardwareProfile | HostProfile:
    """Read a hardware profile, of GPUs or of this machine's ranks.

    Raises:
        InputError: If the file cannot be used.
    """
    file = read_yaml(path, "docs/planner.md")
    if isinstance(file.data, dict) and str(file.data.get("format")).startswith("longshore-host"):
        return validated(file, HostProfile, file.data)
    return validated(file, HardwareProfile, file.data)


def read_gpu_hardware(path: Path) -> HardwareProfile:
    """Read a hardware profile of GPUs.

    Raises:
        InputError: If the file cannot be used, or is of this machine's ranks.
    """
    found = read_hardware(path)
    if isinstance(found, HostProfile):
        raise InputError("it is of a machine without GPUs", "give one of `plan calibrate`", path=path)
    return found


def write_hardware(path: Path, profile: HardwareProfile | HostProfile) -> None:
    """Write a hardware profile.

    Raises:
        InputError: If it cannot be written.
    """
    head = HOST_PROFILE_HEAD if isinstance(profile, HostProfile) else PROFILE_HEAD
    write_text(path, head + yaml_text(profile.model_dump(mode="json")))
