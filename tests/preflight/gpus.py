"""A node with scripted GPUs, and what a check finds on it, in this process."""

from collections.abc import Sequence
from pathlib import Path

from longshore.preflight.check import Finding, find_check
from longshore.preflight.checked_job import CheckedJob
from longshore.preflight.context import Chosen, Context, NodeSetup
from longshore.preflight.readers import Gpu
from longshore.preflight.scripted import ScriptedGpu, ScriptedReader
from longshore.preflight.warm_worker import Order, carry_out


def gpu(index: int, name: str = "NVIDIA A100-SXM4-80GB") -> ScriptedGpu:
    return ScriptedGpu(Gpu(index, f"GPU-{index}", name, f"00000000:{index + 0x0F:02X}:00.0", 80 << 30, 79 << 30))


def node(folder: Path, gpus: Sequence[ScriptedGpu] | None = None, **place: object) -> Context:
    sysfs, log = folder / "infiniband", folder / "kmsg"
    whole: dict[str, object] = {"sysfs": sysfs, "kernel_log": log} | place
    reader = None if gpus is None else ScriptedReader(gpus)
    return Context(NodeSetup("n1", folder, **whole), reader)  # type: ignore[arg-type]


def ask(
    context: Context,
    check: str,
    gpus: Sequence[int] = (0, 1),
    workload: CheckedJob | None = None,
    cleared_s: float = 0.0,
) -> list[Finding]:
    """Return what a check finds, as a warm process would tell it."""
    chosen = Chosen(tuple(gpus), ("n1",), 1, find_check(check).limit_s, cleared_s)
    order = Order(number=1, check=check, chosen=chosen, workload=workload or CheckedJob())
    return carry_out(order, context)


def write_port(root: Path, name: str, state: str = "4: ACTIVE", physical: str = "5: LinkUp", **counters: int) -> None:
    device, _, port = name.partition("/")
    folder = root / device / "ports" / port
    (folder / "counters").mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(f"{state}\n")
    (folder / "phys_state").write_text(f"{physical}\n")
    (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
    for counter, value in counters.items():
        (folder / "counters" / counter).write_text(f"{value}\n")
