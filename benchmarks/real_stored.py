"""What `make bench-real` measured: each window's figures, in benchmarks/real.json, and how policies compare by them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from .harness import ROOT
from .real_windows import Everywhere, Figures

STORED = ROOT / "benchmarks" / "real.json"
LEARNED, PATIENT, EFT, PACK = "learned", "patient", "eft", "pack"  # names under which figures are stored
RUN = "run "  # before the number of one of the trainings of which the learned policy is the mean


class Cell(BaseModel):
    """What all policies did on the later windows of a trace, under one order regime and at one load."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    order: str
    trace: str
    load: str
    offered: float
    patience: float  # the factor of `patient`
    past: dict[str, float]  # mean logarithm of the mean JCT of each heuristic on the windows that it is chosen by
    later: dict[str, Figures]  # of each policy
    trained: list[float]  # logarithm of the learned policy's mean JCT over `patient`'s, in each window of the past


class Stored(BaseModel):
    """Everything that was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: str  # with date and commit
    checkpoint: str  # SHA-256
    draws: int  # of speeds and faults for each window
    cells: list[Cell]


class Pick(NamedTuple):
    """A heuristic under an order regime."""

    order: str
    policy: str


def stored(path: Path = STORED) -> Stored:
    """Return what was measured last."""
    return Stored.model_validate_json(path.read_text(encoding="utf-8"))


def store(found: Stored, path: Path = STORED) -> None:
    """Write what was measured, a cell on each line."""
    head = found.model_copy(update={"cells": []}).model_dump_json().removesuffix("]}")
    lines = ",\n".join(cell.model_dump_json() for cell in found.cells)
    path.write_text(f"{head}\n{lines}\n]}}\n", encoding="utf-8")


def orders_of(cells: Sequence[Cell]) -> list[str]:
    """Return the order regimes, in their order."""
    return list(dict.fromkeys(cell.order for cell in cells))


def played(cells: Sequence[Cell], order: str, policy: str) -> Everywhere:
    """Return how a policy did under an order regime, everywhere."""
    return {(cell.trace, cell.load): cell.later[policy] for cell in cells if cell.order == order}


def picks_of(cells: Sequence[Cell]) -> dict[tuple[str, str], Pick]:
    """Return the order regime and heuristic that did best on the past of each trace at each load."""
    best: dict[tuple[str, str], tuple[float, Pick]] = {}
    for cell in cells:
        for policy, cost in cell.past.items():
            key = cell.trace, cell.load
            if key not in best or cost < best[key][0]:
                best[key] = cost, Pick(cell.order, policy)
    return {key: pick for key, (_, pick) in best.items()}


def picked(cells: Sequence[Cell]) -> Everywhere:
    """Return how these did."""
    by_order = {(cell.order, cell.trace, cell.load): cell.later for cell in cells}
    return {(trace, load): by_order[pick.order, trace, load][pick.policy]
            for (trace, load), pick in picks_of(cells).items()}  # fmt: skip
