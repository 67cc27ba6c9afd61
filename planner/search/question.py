"""What is asked of the search, and what the GPUs of a layout are.

Source: SPEC P1.
"""

from dataclasses import dataclass
from math import ceil

from ..model.constants import Constants
from ..model.hardware import HardwareProfile
from ..model.host import HostProfile
from ..model.pool import GpuType, Pool, carried_over, slowest
from ..profile.layers import ModelProfile
from .costs import Layers, host_layers, layers_of
from .layouts import Layout

Chain = Pool  # types that one plan may use, in the order in which their GPUs are taken


@dataclass(frozen=True, slots=True)
class Question:
    """A model, how long it may take, and with what.

    Args:
        profile: Of the model.
        layers: The same as arrays.
        hardware: Constants of the step-time model, or what ranks of one machine do in a second.
        pool: GPUs that may be used.
        batch: Samples of an iteration.
        iterations: Of the whole training.
        deadline_s: Time for all of them; None for as soon as possible.
        degrees: Data, pipeline and tensor degree of all plans that count; None for any.
        is_plain: Whether only plans count that `longshore.stage` carries out.
        is_replicated: Whether only plans count whose ranks all do the same, so that any may take another's place.
        offload: Whether a plan that does not fit otherwise may put its optimizer state into host memory.
    """

    profile: ModelProfile
    layers: Layers
    hardware: HardwareProfile | HostProfile
    pool: Pool
    batch: int
    iterations: int
    deadline_s: float | None
    degrees: tuple[int, int, int] | None = None
    is_plain: bool = False
    is_replicated: bool = False
    offload: bool = False

    @property
    def most_step_s(self) -> float:
        """What an iteration may be predicted to take, so that the bound meets the deadline."""
        if self.deadline_s is None:
            return 0.0
        return self.deadline_s / (self.iterations * self.hardware.accuracy.bound_factor)

    @property
    def fitted(self) -> HardwareProfile:
        """The constants of the step-time model, where GPUs are planned with."""
        assert isinstance(self.hardware, HardwareProfile)
        return self.hardware

    def constants(self, gpu_type: GpuType) -> Constants:
        """Return the constants on GPUs of a type."""
        return carried_over(self.fitted.values, self.fitted.measured_on, gpu_type)


def question(
    profile: ModelProfile,
    hardware: HardwareProfile | HostProfile,
    pool: Pool,
    *,
    batch: int,
    samples: float,
    deadline_s: float | None,
    degrees: tuple[int, int, int] | None = None,
    is_plain: bool = False,
) -> Question:
    """Return the question of training a model on so many samples."""  # fmt: skip
    iterations = max(1, ceil(samples / batch))
    layers = host_layers(profile) if isinstance(hardware, HostProfile) else layers_of(profile)
    return Question(profile, layers, hardware, pool, batch, iterations, deadline_s, degrees, is_plain=is_plain)


def chains(pool: Pool) -> list[Chain]:
    """Return which types plans may use: each alone, and the fastest two, three and so on together."""
    return [*((it,) for it in pool), *(pool[:count] for count in range(2, len(pool) + 1))]


def gpus_of(chain: Chain) -> int:
    """Return the GPUs of all types."""
    return sum(it.gpus for it in chain)


def stage_types(chain: Chain, layout: Layout) -> list[GpuType]:
    """Return what the GPUs of each stage amount to: a stage goes as fast as its slowest member.

    GPUs are taken in the order of the chain, so the first stages, which keep most, have the fastest.
    """
    each = layout.data * layout.tensor
    found, taken = [], 0
    for _ in range(layout.pipeline):
        found.append(slowest(_between(chain, taken, taken + each)))
        taken += each
    return found


def _between(chain: Chain, first: int, end: int) -> list[GpuType]:
    """Return the types of the GPUs from one to another, with as many GPUs as are taken of each."""
    found, passed = list[GpuType](), 0
    for it in chain:
        taken = min(end, passed + it.gpus) - max(first, passed)
        if taken > 0:
            found.append(it._replace(gpus=taken))
        passed += it.gpus
    return found
