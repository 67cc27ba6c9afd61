"""A hardware profile: constants fitted on one kind of GPU and network, how sure they are, and how they carry over."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from .constants import PRIOR, Constants

Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Measured(_Section):
    """What the GPUs and the network are by their datasheets on which the runs were measured."""

    peak_flops: Positive = 312e12  # of one GPU: an A100 in bf16, without sparsity
    memory_bytes_per_s: Positive = 1.5e12  # of one GPU
    intra_bytes_per_s: Positive = 300e9  # between two GPUs of a node: NVLink of an A100
    nic_bytes_per_s: Positive = 25e9  # of a node: 200 Gbit/s
    gpus_per_node: Annotated[int, Field(ge=1, le=1_000_000)] = 8


class FittedConstants(_Section):
    """The constants, as `Constants` has them."""

    efficiency: Annotated[float, Field(gt=0, le=10)]
    half_elements: Positive
    tensor_bytes_per_s: Positive
    inside_bytes_per_s: Positive
    across_bytes_per_s: Positive
    layer_s: Positive
    tensor_layer_s: Positive
    iteration_s: Positive


class Accuracy(_Section):
    """How far predictions were from runs that they did not know."""

    runs: Annotated[int, Field(ge=1)]
    mean_error: Annotated[float, Field(ge=0)]  # mean of |predicted / measured - 1|
    bias: float  # mean of predicted / measured - 1
    bound_share: Share  # of runs that the bound is to cover
    bound_factor: Positive  # predicted time times this covers so many


class HardwareProfile(_Section):
    """A hardware profile as its file has it; see docs/planner.md."""

    format: Literal["longshore-hardware-1"] = "longshore-hardware-1"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    measured_on: Measured = Measured()
    constants: FittedConstants
    not_identified: Annotated[tuple[str, ...], Field(strict=False)] = ()  # constants that the runs could not tell
    accuracy: Accuracy

    @property
    def values(self) -> Constants:
        """The constants on the hardware that they were measured on."""
        return Constants(**self.constants.model_dump())


def fitted(constants: Constants) -> FittedConstants:
    """Return constants as a file has them."""
    return FittedConstants(**{name: float(value) for name, value in constants._asdict().items()})


# What `longshore planner calibrate` makes of half of the 109 multi-node runs of Megatron-DeepSpeed on A100 that vTrain
# published (MIT licence): 54 runs on 64 to 512 GPUs. `make bench-planner` fits them again and compares.
DEFAULT = HardwareProfile(
    name="A100, Megatron-DeepSpeed, 64 to 512 GPUs",
    constants=fitted(
        PRIOR._replace(
            efficiency=0.746, half_elements=0.237e6, tensor_bytes_per_s=130e9, inside_bytes_per_s=99.9e9,
            across_bytes_per_s=10.1e9, layer_s=2.66e-3, tensor_layer_s=0.659e-3, iteration_s=5.1e-3,
        )
    ),
    not_identified=("inside_bytes_per_s", "iteration_s"),
    accuracy=Accuracy(runs=54, mean_error=0.095, bias=-0.029, bound_share=0.9, bound_factor=1.25),
)  # fmt: skip
