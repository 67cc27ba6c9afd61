"""What can be trained on and evaluated by name: the regime that fits it, and its scenarios if they are drawn."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..model.problem import Problem
from .problems import Regime, hetero64_problem, patent_problem

STREAM_JOBS, STREAM_LOAD = 128, 0.85

Draw = Callable[[int, int, Regime], Problem]  # of a number of scenarios, a seed and a regime


class Named(NamedTuple):
    """A problem that has a name.

    Args:
        draw: Draws its scenarios; None where these are windows of a trace, or of a scheduler's past.
        order: Order regime if none is asked for.
        waiting: Whether policies may wait if nothing is said.
    """

    draw: Draw | None
    order: str = "fifo"
    waiting: bool = False


_PATENT4, _PATENT64 = Named(partial(patent_problem, 4)), Named(partial(patent_problem, 64))
NAMED = {
    "hetero64": Named(hetero64_problem),
    "hetero64-stream": Named(partial(hetero64_problem, jobs=STREAM_JOBS, load=STREAM_LOAD)),
    "traces": Named(None, order="shortest", waiting=True),
    "history": Named(None, waiting=True),
    "philly": Named(None),
    "itp": Named(None),
    "patent4": _PATENT4,
    "patent64": _PATENT64,
    "patent4-ours": _PATENT4,
    "patent64-ours": _PATENT64,
}
