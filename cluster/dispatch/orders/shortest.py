"""Shortest job first."""

from ...kernels.compiled import kernel
from .order import Order


@kernel
def expected_work(gpus: int, work_s: float) -> float:
    """Return the seconds that a job is expected to run."""
    return float(work_s)


ORDER = Order("the job of shortest estimate; while it does not fit, others that do not delay it, shortest first",
              key=expected_work, goes_first=True)  # fmt: skip
