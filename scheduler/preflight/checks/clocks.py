"""Whether a GPU is slowed down by its hardware."""

from collections.abc import Iterator

from ..check import Check, Finding, Need, failed, passed, skipped, warned
from ..context import Context


def slowed(context: Context) -> Iterator[Finding]:
    """Look for reasons of the hardware that make a GPU slow, and for a lowered power limit."""
    for gpu in context.chosen.gpus:
        clocks = None if context.gpu_reader is None else context.gpu_reader.clocks(gpu)
        device = f"gpu {gpu}"
        if clocks is None:
            yield skipped("the GPU does not tell", device)
        elif clocks.reasons:
            yield failed(device, ", ".join(clocks.reasons), "no slowdown by hardware", "look at cooling and power")
        elif _is_lowered(clocks.power_limit_w, clocks.default_power_limit_w):
            got = f"a power limit of {clocks.power_limit_w:g} W"
            yield warned(device, got, f"{clocks.default_power_limit_w:g} W", "restore it: nvidia-smi -pl")
        else:
            yield passed(device)


def _is_lowered(limit_w: float | None, default_w: float | None) -> bool:
    return limit_w is not None and default_w is not None and limit_w < 0.99 * default_w


CLOCKS = Check("clocks.thermal", 0, "no GPU is slowed down by its hardware", 0.5, slowed, (Need.GPU,))
