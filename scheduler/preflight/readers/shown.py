"""Which GPUs CUDA shows a process, as NVML counts them.

Source: CUDA C++ Programming Guide, CUDA Environment Variables.
"""

from collections.abc import Sequence

from .gpu_reader import Gpu


def shown_gpus(told: str | None, gpus: Sequence[Gpu] | None) -> list[int] | None:
    """Return NVML's numbers of the GPUs that CUDA shows, in CUDA's order; None if these are all, or cannot be told.

    CUDA passes over all that stands behind an entry which names no GPU. Parts of GPUs (MIG) cannot be told.

    Args:
        told: CUDA_VISIBLE_DEVICES: numbers by PCI address, or UUIDs, of which the beginning is enough. None if unset.
        gpus: All that NVML sees; None if it is not there, so that UUIDs cannot be told either.
    """
    if told is None or "MIG-" in told:
        return None
    found: list[int] = []
    for entry in told.split(","):
        name = entry.strip()
        if gpus is None and name.startswith("GPU-"):
            return None
        number = _number(name, gpus or ())
        if number is None:
            break
        found.append(number)
    return found


def _number(name: str, gpus: Sequence[Gpu]) -> int | None:
    if name.isascii() and name.isdecimal():
        return int(name[:9])
    named = [gpu.index for gpu in gpus if gpu.uuid.startswith(name)] if name.startswith("GPU-") else []
    return named[0] if len(named) == 1 else None
