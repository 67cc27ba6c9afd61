"""Which GPUs a job has, node by node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """GPUs of one node in a placement."""

    node: str
    gpus: tuple[int, ...]  # indices on the node, ascending


Placement = tuple[Share, ...]  # in the order of nodes; ranks go through it share by share
