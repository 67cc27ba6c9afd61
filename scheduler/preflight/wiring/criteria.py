"""The criteria of a link, each with what is seen and what is wanted. Nothing is read here.

Source: SPEC C3: physical state, bit error rate and loss of lock or signal per lane, transceiver present, answering,
configured and on a list, cable type, neighbour as expected, each held for a minimum time.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..readers.ports import Port
from .blueprint import Blueprint, PortPlan
from .facts import Lane, PortFacts

CABLE, TRANSCEIVER = "replace the cable", "reseat or replace the transceiver"
REPLUG = "plug the cable in as the wiring says, or learn it anew"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of a link at one moment."""

    name: str
    holds: bool | None  # None where it is not told
    got: str
    wanted: str
    action: str


def criteria_of(plan: PortPlan, port: Port | None, facts: PortFacts, blueprint: Blueprint) -> list[Criterion]:
    """Return all criteria of a port.

    Args:
        plan: What is expected of it.
        port: What sysfs tells; None if it is not there.
        facts: What the site's tool tells.
        blueprint: What holds for all ports.
    """
    return [
        _state(plan, port),
        *_transceiver(plan, facts, blueprint),
        _as_planned("cable type", facts.cable, plan.cable, CABLE),
        _as_planned("neighbour", facts.neighbour, plan.neighbour, REPLUG),
        *_lanes(plan, facts.lanes, blueprint.most_bit_error_rate),
    ]


def _state(plan: PortPlan, port: Port | None) -> Criterion:
    wanted = f"ACTIVE, LinkUp, {plan.rate or 'any rate'}"
    if port is None:
        return Criterion("physical state", False, "the port is not there", wanted, "reseat or replace the card")  # noqa: FBT003
    holds = port.state == "ACTIVE" and port.physical == "LinkUp" and plan.rate in ("", port.rate)
    return Criterion("physical state", holds, f"{port.state}, {port.physical}, {port.rate}", wanted, CABLE)


def _transceiver(plan: PortPlan, facts: PortFacts, blueprint: Blueprint) -> Iterator[Criterion]:
    for name, holds in (("present", facts.present), ("answering", facts.answering), ("configured", facts.configured)):
        yield Criterion(f"transceiver {name}", holds, f"not {name}", name, TRANSCEIVER)
    allowed = (plan.transceiver,) if plan.transceiver else blueprint.transceivers
    told = None if facts.transceiver is None or not allowed else facts.transceiver in allowed
    wanted = " or ".join(allowed[:5])
    yield Criterion("transceiver on the list", told, facts.transceiver or "", wanted, "use one of the list")


def _as_planned(name: str, told: str | None, planned: str, action: str) -> Criterion:
    return Criterion(name, None if told is None or not planned else told == planned, told or "", planned, action)


def _lanes(plan: PortPlan, lanes: tuple[Lane, ...], most: float) -> Iterator[Criterion]:
    if plan.lanes and lanes:
        yield Criterion("lanes", len(lanes) == plan.lanes, f"{len(lanes)} lanes", f"{plan.lanes} lanes", CABLE)
    for at, lane in enumerate(lanes):
        rate = lane.bit_error_rate
        fine = None if rate is None else rate <= most
        yield Criterion(f"bit error rate of lane {at}", fine, f"{rate}", f"at most {most:g}", CABLE)
        yield Criterion(f"lock of lane {at}", lane.lock, "lost", "locked", TRANSCEIVER)
        yield Criterion(f"signal of lane {at}", lane.signal, "lost", "a signal", TRANSCEIVER)


class Held:
    """Which criteria of a link have held in every look of a time."""

    def __init__(self) -> None:
        self._worst: dict[str, Criterion] = {}
        self._broke_s: dict[str, float] = {}
        self._began_s: float | None = None

    def look(self, criteria: Iterable[Criterion], now_s: float) -> None:
        """Take what is seen at a moment.

        Args:
            criteria: All of one link.
            now_s: Of a clock that does not go back.
        """
        self._began_s = now_s if self._began_s is None else self._began_s
        for it in criteria:
            worst = self._worst.get(it.name)
            if worst is None or worst.holds is not False:
                self._worst[it.name] = it if it.holds is not None or worst is None else worst
            if it.holds is False:
                self._broke_s.setdefault(it.name, now_s - self._began_s)

    def broken(self) -> Mapping[str, tuple[Criterion, float]]:
        """Return the criteria that did not hold at some look, and how long after the first look that was."""
        return {name: (self._worst[name], at_s) for name, at_s in self._broke_s.items()}

    def not_told(self) -> list[str]:
        """Return the criteria that nobody told of."""
        return [name for name, it in self._worst.items() if it.holds is None]
