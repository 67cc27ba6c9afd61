"""The inputs of `longshore plan find`: from options and files to a request for the search.

Source: SPEC P1.
"""

from pathlib import Path

from ..cluster.files.errors import InputError
from ..cluster.presets.cluster_file import read_cluster
from .hardware import DEFAULT, HardwareProfile, HostProfile, read_hardware
from .profile.profiling import ModelProfile, ProfilingLimits, profile_model, read_layer_table
from .request import PlanRequest, Pool, gpu_pool_of, make_request, rank_pool_of

MAX_SAMPLES = 1e15


def read_request(
    model: str,
    cluster: Path | None,
    hardware: Path | None,
    limits: ProfilingLimits,
    *,
    batch: int,
    samples: float | None,
    tokens: float | None,
    deadline_s: float | None,
    gpus: int | None,
    degrees: tuple[int, int, int] | None,
    is_plain: bool,
) -> PlanRequest:
    """Read the files that the options name, and profile the model.

    Args:
        model: `FILE.py:FUNCTION`, or a table of layers.
        cluster: Cluster file; None where the hardware is ranks of this machine.
        hardware: Hardware profile; the one that comes with Longshore if None.
        limits: Of the process that profiles the model.
        batch: Samples of an iteration.
        samples: Of the training; None if its tokens are given.
        tokens: Of the training, or None.
        deadline_s: Time for the whole training; None for the fastest plan.
        gpus: At most, of all types together, or None.
        degrees: Required data, pipeline and tensor degree; None for any.
        is_plain: Whether plans are limited to those that `longshore.stage` can run.

    Raises:
        InputError: If one of the files cannot be used.
        PluginError: If the fault model of the cluster file cannot be imported.
    """
    known = DEFAULT if hardware is None else read_hardware(hardware)
    pool = limit_pool(_read_pool(cluster, known), gpus)
    found = read_or_profile_model(model, limits)
    count = training_samples(found, samples=samples, tokens=tokens)
    return make_request(
        found, known, pool, batch=batch, samples=count, deadline_s=deadline_s, degrees=degrees, is_plain=is_plain
    )


def _read_pool(cluster: Path | None, hardware: HardwareProfile | HostProfile) -> Pool:
    if isinstance(hardware, HostProfile):
        if cluster is not None:
            problem = "the hardware profile is of ranks of one machine, which need no cluster file"
            raise InputError(problem, "omit it", field="--cluster")
        return rank_pool_of(hardware)
    if cluster is None:
        fix = "give one, or as --hardware a profile of `longshore plan measure`"
        raise InputError("there is no cluster file", fix, field="--cluster")
    return gpu_pool_of(read_cluster(cluster))


def read_or_profile_model(model: str, limits: ProfilingLimits) -> ModelProfile:
    """Return the profile of a model, from its code or from a table of its layers."""
    return read_layer_table(Path(model)) if model.endswith(".csv") else profile_model(model, limits)


def limit_pool(pool: Pool, gpus: int | None) -> Pool:
    """Return a pool of at most N GPUs, the fastest first."""
    left, found = float("inf") if gpus is None else gpus, []
    for gpu_type in pool:
        taken = int(min(gpu_type.gpus, left))
        left -= taken
        found += [gpu_type._replace(gpus=taken)] if taken else []
    return tuple(found)


def training_samples(model_profile: ModelProfile, *, samples: float | None, tokens: float | None) -> float:
    """Return the samples of a training, from its samples or its tokens.

    Raises:
        InputError: If there are too many.
    """
    if samples is not None:
        return samples
    assert tokens is not None  # the caller gives one of the two
    samples = tokens / model_profile.tokens_per_sample
    if samples > MAX_SAMPLES:
        raise InputError(f"{tokens:g} tokens are too many", f"give at most {MAX_SAMPLES:g}", field="--tokens")
    return samples
