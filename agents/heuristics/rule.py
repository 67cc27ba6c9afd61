"""What a heuristic is: a compiled rule. Rules stand in files of their own, registered under `longshore.heuristics`."""

from collections.abc import Callable
from typing import NamedTuple

from ...cluster.state.state import Simulation


class Rule(NamedTuple):
    """A heuristic.

    Args:
        pick: Compiled by `longshore.cluster.kernels.compiled.kernel`. It is given a simulation, a row in which a job is
            due, and the patience. It picks the GPUs of the job by `take_node` or `take_gpu`
            (`longshore.cluster.dispatch.placing`) and returns True; or it returns False to wait, where `may_wait`
            (`longshore.cluster.dispatch.order`) allows that. What it has picked then is undone.
        about: One line for `longshore policies`.
        patience: How much waiting a second of saved run time is worth; 0 never waits. Rules may leave it alone.
        waits: Whether it differs where waiting is allowed.
    """

    pick: Callable[[Simulation, int, float], bool]
    about: str
    patience: float = 0.0
    waits: bool = False
