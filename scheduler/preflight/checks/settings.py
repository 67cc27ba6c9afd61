"""What GPUs are set to while they serve a job: a clock that stays, and a limit of their power.

Source: SPEC C2, C6.
"""

from collections.abc import Iterator

from ..check import Check, Finding, Need, Stage, passed, skipped, warned
from ..context import Context

SET = "ask the administrator of the node: setting clocks and power limits takes root"


def set_gpus(context: Context) -> Iterator[Finding]:
    """Give each chosen GPU the clock and the limit of power that the job asks for; `post.reset` takes them back."""
    workload, reader = context.workload, context.gpu_reader
    if not workload.clock_mhz and not workload.power_w:
        yield skipped("the job asks for no settings")
        return
    for gpu in context.chosen.gpus if reader is not None else ():
        assert reader is not None
        if workload.clock_mhz:
            done = reader.lock_clock(gpu, workload.clock_mhz)
            yield _finding(f"gpu {gpu}", f"a clock of {workload.clock_mhz} MHz", done)
        if workload.power_w:
            done = reader.limit_power(gpu, workload.power_w)
            yield _finding(f"gpu {gpu}", f"a limit of {workload.power_w:g} W", done)


def _finding(device: str, what: str, done: bool | None) -> Finding:  # noqa: FBT001  # None says that it may not be set
    if done is None:
        return warned(device, f"no right to set {what}, or no way", what, SET)
    # A GPU that does not take what a job asks for is fit all the same.
    return passed(device, got=what) if done else warned(device, f"{what} was refused", what, "correct the job file")


SETTINGS = Check("gpu.settings", 0, "GPUs have the clock and the limit of power that the job asks for", 2.0, set_gpus,
                 (Need.GPU,), Stage.READY)  # fmt: skip
