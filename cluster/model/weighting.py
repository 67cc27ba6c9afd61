"""What a user asks to be minimised: a figure of a run, or several with weights.

Several are weighed by their weighted geometric mean: one per cent less of a figure counts by its weight, whatever its
unit and size. So a policy is as much better than another by what it is better in each figure, and no reference is
needed to weigh hours against slowdowns.
"""

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..files.errors import InputError
from ..files.input_problems import nearest
from .objective import objective_of

LEAST = 1e-9  # a figure of 0 has no logarithm


class Measured(Protocol):
    """What has the figures of runs, each of any one shape."""

    @property
    def makespan_s(self) -> NDArray[np.float64]:
        """End of the last job."""

    @property
    def mean_jct_s(self) -> NDArray[np.float64]:
        """Mean JCT."""

    @property
    def p99_jct_s(self) -> NDArray[np.float64]:
        """JCT that 99 % of jobs stay below."""

    @property
    def mean_slowdown(self) -> NDArray[np.float64]:
        """Mean of JCT over work."""


class Figure(NamedTuple):
    """A figure that can be asked for."""

    field: str  # of Measured
    title: str


FIGURES = {
    "mean-jct": Figure("mean_jct_s", "mean JCT"),
    "p99-jct": Figure("p99_jct_s", "p99 JCT"),
    "slowdown": Figure("mean_slowdown", "mean slowdown"),
    "makespan": Figure("makespan_s", "makespan"),
}


class Term(NamedTuple):
    """A figure with its weight."""

    name: str  # one of FIGURES
    weight: float  # beside those of other terms


class Weighting(NamedTuple):
    """Figures with weights, in the order of FIGURES."""

    terms: tuple[Term, ...]

    @property
    def text(self) -> str:
        """As a user writes it."""
        if len(self.terms) == 1:
            return self.terms[0].name
        return ",".join(f"{term.name}:{term.weight:g}" for term in self.terms)

    @property
    def title(self) -> str:
        """As tables call it."""
        return FIGURES[self.terms[0].name].title if len(self.terms) == 1 else "weighted objective"

    @property
    def field(self) -> str:
        """As fields of figures and of JSON call it."""
        return FIGURES[self.terms[0].name].field if len(self.terms) == 1 else "weighted_objective"

    @property
    def is_time(self) -> bool:
        """Whether its unit is the second."""
        return all(FIGURES[term.name].field.endswith("_s") for term in self.terms)

    def weight(self, name: str) -> float:
        """Return the share of a figure, of 1 in all; 0 if it is none of these."""
        return sum(term.weight for term in self.terms if term.name == name) / sum(term.weight for term in self.terms)

    def cost(self, figures: Measured) -> NDArray[np.float64]:
        """Return what is minimised, of the figures' shape."""
        values: list[NDArray[np.float64]] = [getattr(figures, FIGURES[term.name].field) for term in self.terms]
        if len(values) == 1:
            return values[0]
        shares = [self.weight(term.name) for term in self.terms]
        logs = [share * np.log(np.maximum(one, LEAST)) for share, one in zip(shares, values, strict=True)]
        cost: NDArray[np.float64] = np.exp(np.sum(logs, axis=0))
        return cost


def alone(name: str) -> Weighting:
    """Return the weighting of a single figure."""
    return Weighting((Term(name, 1.0),))


def usual_weighting(submit_s: NDArray[np.float64]) -> Weighting:
    """Return what is minimised if nobody asks: the makespan of a batch, else the mean JCT."""
    return alone("makespan" if objective_of(submit_s) == "makespan" else "mean-jct")


def weighting_of(text: str) -> Weighting:
    """Return what a user asks for: `p99-jct`, or `mean-jct:0.7,p99-jct:0.3`; weights that are left out are 1.

    Raises:
        InputError: If a figure is not known or named twice, or a weight is no positive number.
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, colon, number = part.strip().partition(":")
        if name not in FIGURES:
            raise InputError(f"there is no objective {name!r}", nearest(name, FIGURES), field="--objective")
        if name in weights:
            raise InputError(f"{name} stands there twice", "give it one weight", field="--objective")
        weights[name] = _weight(part, number) if colon else 1.0
    if len(weights) == 1:
        return alone(next(iter(weights)))
    return Weighting(tuple(Term(name, weights[name]) for name in FIGURES if name in weights))


def _weight(part: str, number: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not 1e-3 <= weight <= 1e3:
        raise InputError(
            f"{part.strip()!r} has no weight from 0.001 to 1000", "write it as in mean-jct:0.7,p99-jct:0.3",
            field="--objective",
        )  # fmt: skip
    return weight
