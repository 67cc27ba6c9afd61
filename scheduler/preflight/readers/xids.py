"""Xid numbers: what NVIDIA's driver writes to the kernel's log of a fault, and what is done about each.

Source: NVIDIA's catalogue of Xid errors, as of 2025-10.
"""

from dataclasses import dataclass
from enum import StrEnum


class Blame(StrEnum):
    """What a fault is held against."""

    NOTHING = "nothing"
    JOB = "job"  # its own fault, unless two jobs see it on one GPU
    WARN = "warn"
    GPU = "gpu"
    LINK = "link"
    NODE = "node"  # at once


@dataclass(frozen=True, slots=True)
class Xid:
    """What is known of a number."""

    about: str
    blame: Blame
    action: str


_RESET = "reset the GPU, then run level 2"
_TABLE = (
    ((13, 31, 32, 69), Xid("exception or page fault of a program", Blame.JOB, "restart the job")),
    ((43, 45), Xid("stopped after another fault", Blame.NOTHING, "")),
    ((46, 62, 109, 110, 119, 120, 143, 158), Xid("time-out, firmware or start-up", Blame.GPU, _RESET)),
    ((48,), Xid("double-bit memory error", Blame.GPU, _RESET)),
    ((63,), Xid("a row of memory was replaced", Blame.WARN, "reset the GPU when it is idle")),
    ((64,), Xid("a row of memory could not be replaced", Blame.GPU, "reset the GPU; replace it if it returns")),
    ((74, 144, 145, 149), Xid("NVLink", Blame.LINK, "reset the GPUs; check fabric manager and bridge")),
    ((79,), Xid("the GPU has fallen off the bus", Blame.NODE, "restart the machine; reseat or replace the GPU")),
    ((92,), Xid("many single-bit memory errors", Blame.WARN, "run level 2 when it is idle")),
    ((94,), Xid("a contained memory error", Blame.WARN, "restart the job")),
    ((95, 140), Xid("an uncontained memory error", Blame.GPU, _RESET)),
)
XIDS = {number: xid for numbers, xid in _TABLE for number in numbers}
UNKNOWN = Xid("not in our table", Blame.WARN, "look it up in NVIDIA's catalogue of Xid errors")


def xid_of(number: int) -> Xid:
    """Return what is known of a number."""
    return XIDS.get(number, UNKNOWN)
