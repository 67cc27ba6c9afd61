"""Products of matrices: whether they are right, and how fast they come.

Source: SPEC C2.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..check import Check, Compared, Finding, Need, failed, passed
from ..context import Context

if TYPE_CHECKING:
    from ..arithmetic.products import Products, Verdict
    from ..arithmetic.references import Maker

LEAST_SPEED = 0.9  # of the median
SHARE = 0.5  # of the limit, for all GPUs together: what a long run takes, and a short one at most
SPEED_S, SPEED_SIZE = 0.1, 4096


def right(context: Context) -> Iterator[Finding]:
    """Multiply, and hold the product against the stored reference; on long runs again and again."""
    products = products_of(context)
    for gpu in context.accelerators:
        yield _multiplied(context, products, gpu)


def _multiplied(context: Context, products: "Products", gpu: int) -> Finding:
    where, maker = context.where(gpu), maker_of(context, gpu)
    device = "processor" if where == "cpu" else f"gpu {gpu}"
    until_s = time.perf_counter() + SHARE * context.chosen.limit_s / len(context.chosen.gpus)
    times = 0
    while True:
        verdict = products.judge(products.multiply(where), maker)
        times += 1
        if not verdict.is_clean:
            return _wrong(device, verdict)
        if not context.is_long or time.perf_counter() >= until_s:
            how = "bit by bit" if verdict.is_golden else "within the tolerance"
            return passed(device, got=f"{times} products right {how}")


def _wrong(device: str, verdict: "Verdict") -> Finding:
    action = "run level 2; replace the GPU if it returns"
    if verdict.wrong is not None:
        it = verdict.wrong
        got = f"{it.got!r} at [{it.row}, {it.column}], {it.elements} wrong in all"
        return failed(device, got, f"{it.wanted!r}, at most {it.limit:.3g} off", action)
    row, column, count = verdict.bit or (0, 0, 0)
    got = f"other bits at [{row}, {column}], {count} such elements in all, within the tolerance"
    return failed(device, got, "the bits that this type of GPU, driver and library gave before", action)


def products_of(context: Context) -> "Products":
    """Return the product that is asked for, with its references; made once in the life of a process."""
    from ..arithmetic.products import opened

    dtype = context.workload.dtype
    if dtype not in context.products:
        context.products[dtype] = opened(context.place.folder / "references", dtype, context.node)
    return context.products[dtype]


def maker_of(context: Context, gpu: int) -> "Maker":
    """Return what has to be the same for two outputs to be the same bit by bit."""
    import torch

    from ..arithmetic.references import Maker

    reader = context.gpu_reader
    if reader is None or context.where(gpu) == "cpu":
        return Maker(f"{_processor()} {torch.backends.cpu.get_cpu_capability()}", "", f"torch {torch.__version__}")
    name = next((it.name for it in reader.gpus() if it.index == gpu), "not told")
    return Maker(name, reader.driver().driver, f"torch {torch.__version__} cuda {torch.version.cuda}")


def _processor() -> str:
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        return next((it.partition(":")[2].strip() for it in lines if it.startswith("model name")), "processor")


def fast(context: Context) -> Iterator[Finding]:
    """Tell how many operations a second large products come to."""
    import torch

    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    share_s = SHARE * context.chosen.limit_s / max(1, len(context.chosen.gpus))
    budget_s = share_s if context.is_long else min(SPEED_S, share_s)
    for gpu in context.chosen.gpus:
        where = context.where(gpu)
        factor = torch.ones((SPEED_SIZE, SPEED_SIZE), dtype=kinds[context.workload.dtype], device=where)
        _ = factor @ factor
        torch.cuda.synchronize(where)
        times, begin_s = 0, time.perf_counter()
        while time.perf_counter() - begin_s < budget_s:
            _ = factor @ factor
            torch.cuda.synchronize(where)
            times += 1
        rate = times * 2 * SPEED_SIZE**3 / (time.perf_counter() - begin_s)
        yield passed(f"gpu {gpu}", figure=rate, got=f"{rate / 1e12:.4g} TFLOP/s")


def near_median(told: Compared) -> Compared:
    """Return who computes at less than nine tenths of the median speed; all are of one type in a ring."""
    rates = sorted(finding.figure for finding in told.values() if finding.figure is not None)
    median = rates[len(rates) // 2]
    wanted = f"{LEAST_SPEED:.0%} of {median / 1e12:.4g} TFLOP/s, the median"
    return {
        node: failed(finding.device, finding.got, wanted, "clocks.thermal; run level 2")
        for node, finding in told.items()
        if finding.figure is not None and finding.figure < LEAST_SPEED * median
    }


RIGHT = Check("gemm.ref", 1, "products of matrices equal the stored references", 1.0, right, goes_on=True)
FAST = Check(
    "gemm.speed", 1, "products come as fast as on the other nodes", 1.0, fast, (Need.GPU,), compare=near_median,
    goes_on=True,
)  # fmt: skip
