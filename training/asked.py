"""What a training run is asked to learn from, and the problems that come of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from ..cluster.model.problem import Problem
from ..cluster.presets.problems import Regime
from ..cluster.workloads.estimates import EstimateKind

TRAINING_SCENARIOS = 16_384
VALIDATION_SCENARIOS = 1000
VALIDATIONS = 12  # in a run, spread evenly
TRAINED_PART, VALIDATED_PART = (0.0, 0.6), (0.6, 0.7)  # of a trace, in order of time
LATER_PART = (0.7, 1.0)  # on which a policy is compared when it is done; `evaluate` runs it too

KnownEstimates = Literal["exact", "log-normal", "class-mean", "mixed"]
ESTIMATES: tuple[KnownEstimates, ...] = get_args(KnownEstimates)
# Policies that have seen all of these get along with each. Errors of users' own estimates are the commonest.
MIXED: tuple[EstimateKind, ...] = ("log-normal", "exact", "log-normal", "class-mean")
SIGMA = 0.5  # of log-normal errors: a factor of 1.65
LOADS = (0.3, 0.5, 0.7, 0.85, 1.1)  # offered: from hardly any queue to one that grows


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a run, beside those that can be asked for."""

    trained: int = TRAINING_SCENARIOS  # where the problem is drawn; windows of a trace are as many as there are
    validated: int = VALIDATION_SCENARIOS
    validations: int = VALIDATIONS


SIZES = Sizes()


class Asked(NamedTuple):
    """What the problems of a run are made of."""

    seed: int
    regimes: tuple[Regime, ...]
    sizes: Sizes = SIZES
    traces: tuple[Path, ...] = ()
    cluster: Path | None = None  # cluster file; the cluster of `hetero64` if None
    faults: Path | None = None  # recorded faults, in place of the cluster file's
    loads: tuple[float, ...] = LOADS
    estimates: KnownEstimates = "mixed"
    history: Path | None = None  # decisions of a live scheduler


class Problems(NamedTuple):
    """What a run trains on, and what it is validated on: one problem for each order regime."""

    trained: tuple[Problem, ...]
    validated: tuple[Problem, ...]
