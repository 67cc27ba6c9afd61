"""What checks found, as the scheduler acts on it and tells it. It does nothing itself.

Source: SPEC C4.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict

from ....cluster.files.output_file import in_one_line
from ...model.placement import Placement
from ...model.quarantine import WHOLE, Clears, Finding, Place
from ...preflight.check import Outcome, Result
from ...preflight.report import Report

MOST_TOLD, MOST_TEXT = 20, 300  # results of a round in an event, and characters of one
_GPU = re.compile(r"gpu ([0-9]{1,6})")  # a part of one, such as "gpu 3 link 0", is blamed on the node


def findings_of(report: Report, placement: Placement, at_s: float, of_job: Container[str] = ()) -> list[Finding]:
    """Return what comes into quarantine: GPUs of which a check tells, else nodes; each place once for each check.

    Args:
        report: Of a round.
        placement: That it checked. A check that blames a GPU beside it says that the node is not fit.
        at_s: Unix time of its end.
        of_job: Checks that run a program of the job's owner. What they find may be that program's doing: the job does
            not start, and nothing comes into quarantine.
    """
    chosen = {(share.node, gpu) for share in placement for gpu in share.gpus}
    found = dict[tuple[Place, str], Finding]()
    for it in (it for it in report.bad if it.check not in of_job):
        place = _place_of(it, chosen)
        how = "did not pass" if it.outcome is Outcome.FAIL else "did not come to an end"
        finding = Finding(
            place, it.check, f"{it.check} {how}", _evidence(it), short(it.action), Clears.CHECKS, at_s
        )  # fmt: skip
        found.setdefault((place, it.check), finding)
    return list(found.values())


def lines_of(report: Report) -> tuple[str, ...]:
    """Return a line for each thing that is wrong: where, evidence, and what to do."""
    return tuple(map(short, report.diagnostics()))


def told_of(results: Iterable[Result]) -> list[Mapping[str, object]]:
    """Return results as an event holds them, the first ones only."""
    cut = [asdict(it) for it in list(results)[:MOST_TOLD]]
    return [{name: short(value) if isinstance(value, str) else value for name, value in it.items()} for it in cut]


def _place_of(result: Result, chosen: Container[tuple[str, int]]) -> Place:
    found = _GPU.fullmatch(result.device)
    gpu = WHOLE if found is None else int(found[1])
    return Place(result.node, gpu if (result.node, gpu) in chosen else WHOLE)


def _evidence(result: Result) -> str:
    where = f"{result.device}: " if result.device else ""
    wanted = f", wanted {result.wanted}" if result.wanted else ""
    is_told = result.got or result.wanted
    return short(where + (f"got {result.got or 'nothing'}{wanted}" if is_told else result.reason))


def short(text: str) -> str:
    """Return a text in one line that is not too long: a check of strangers may say anything."""
    return in_one_line(text)[:MOST_TEXT]
