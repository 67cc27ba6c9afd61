"""How the futures of rollouts are imagined."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from ...cluster.candidates.futures import draw_future, imagination_of, recall, without_faults
from ...cluster.state.state import Simulation


class Imagining(NamedTuple):
    """What imagines futures, as in cluster/candidates/futures.py."""

    imagination_of: Callable[[Simulation], Simulation] = imagination_of
    recall: Callable[[Simulation, Simulation, int], None] = recall
    draw_future: Callable[[Simulation, int], None] = draw_future
    without_faults: Callable[[Simulation], AbstractContextManager[None]] = without_faults


IMAGINING = Imagining()
