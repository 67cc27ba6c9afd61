"""Which GPUs a job has, node by node."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Share:
    """GPUs of one node in a placement."""

    node: str
    gpus: tuple[int, ...]  # indices on the node, ascending


Placement = tuple[Share, ...]  # in the order of nodes; ranks go through it share by share


class ReservationRow(NamedTuple):
    """A GPU that is not free."""

    node: str
    gpu: int  # index on the node
    job_id: str
    number: int  # of the attempt
    since_s: float
