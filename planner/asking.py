"""From what a user gives to a question for the search: profile, GPUs of a cluster file, samples and deadline.

Source: SPEC P1.
"""

from dataclasses import dataclass
from pathlib import Path

from ..cluster.files.errors import InputError
from ..cluster.presets.cluster_file import read_cluster
from .hardware_file import read_hardware
from .model import DEFAULT, HardwareProfile, HostProfile
from .pool import Pool, pool_of, ranks_of
from .profile.building import read_table
from .profile.profiling import Limits, ModelProfile, profile
from .question import Question, question

MOST_SAMPLES = 1e15


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `longshore plan find`.

    Args:
        model: `FILE.py:FUNCTION`, or a table of layers.
        cluster: Cluster file; None where the hardware is ranks of this machine.
        hardware: Hardware profile; the one that comes with Longshore if None.
        deadline_s: Time for all of the training; None for as soon as possible.
        tokens: Of the training, or None.
        samples: Of the training, or None.
        batch: Samples of an iteration.
        gpus: At most, of all types together, or None.
        limits: Of the process that profiles the model.
        degrees: Data, pipeline and tensor degree of plans that count; None for any.
        is_plain: Whether only plans count that `longshore.stage` carries out.
    """

    model: str
    cluster: Path | None
    hardware: Path | None
    deadline_s: float | None
    tokens: float | None
    samples: float | None
    batch: int
    gpus: int | None
    limits: Limits
    degrees: tuple[int, int, int] | None = None
    is_plain: bool = False


def ask(request: Request) -> Question:
    """Read and profile all that a request names.

    Raises:
        InputError: If any of it cannot be used.
        PluginError: If the fault model of the cluster file cannot be imported.
    """
    hardware = DEFAULT if request.hardware is None else read_hardware(request.hardware)
    pool = limited(_pool(request.cluster, hardware), request.gpus)
    found = model_of(request.model, request.limits)
    samples = samples_of(found, samples=request.samples, tokens=request.tokens)
    return question(
        found, hardware, pool, batch=request.batch, samples=samples, deadline_s=request.deadline_s,
        degrees=request.degrees, is_plain=request.is_plain,
    )  # fmt: skip


def _pool(cluster: Path | None, hardware: HardwareProfile | HostProfile) -> Pool:
    if isinstance(hardware, HostProfile):
        if cluster is not None:
            problem = "the hardware profile is of ranks of one machine, which need no cluster file"
            raise InputError(problem, "leave it out", field="--cluster")
        return ranks_of(hardware)
    if cluster is None:
        fix = "give one, or as --hardware a profile of `longshore plan measure`"
        raise InputError("there is no cluster file", fix, field="--cluster")
    return pool_of(read_cluster(cluster))


def model_of(model: str, limits: Limits) -> ModelProfile:
    """Return the profile of a model, from its code or from a table of its layers."""
    return read_table(Path(model)) if model.endswith(".csv") else profile(model, limits)


def limited(pool: Pool, gpus: int | None) -> Pool:
    """Return a pool with so many GPUs at most, the fastest first."""
    left, found = float("inf") if gpus is None else gpus, []
    for it in pool:
        taken = int(min(it.gpus, left))
        left -= taken
        found += [it._replace(gpus=taken)] if taken else []
    return tuple(found)


def samples_of(found: ModelProfile, *, samples: float | None, tokens: float | None) -> float:
    """Return the samples of a training, of which either these or its tokens are given.

    Raises:
        InputError: If they are too many.
    """
    if samples is not None:
        return samples
    assert tokens is not None  # one of the two, by who asks
    samples = tokens / found.tokens_per_sample
    if samples > MOST_SAMPLES:
        raise InputError(f"{tokens:g} tokens are too many", f"give at most {MOST_SAMPLES:g}", field="--tokens")
    return samples
