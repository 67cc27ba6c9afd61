"""Lines in which a rank tells of its steps and checkpoints: read strictly, and what makes no sense is passed over.

Source: SPEC K3; docs/steps.md has the format.
"""

import re
from enum import StrEnum
from typing import NamedTuple


class StepKind(StrEnum):
    """What a rank is at."""

    TRAIN = "train"
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    OTHER = "other"  # nobody knows how long that takes
    DONE = "done"  # no step at all: what still comes may take as long as it likes


class Begun(NamedTuple):
    """A step that began, and with it the one before ended."""

    kind: StepKind
    step: int
    at_s: float  # Unix time, by the clock of the rank
    computed_s: float | None  # of the step that ended, without what it waited for; None if it was not told
    loss: float | None = None  # of the step that ended, not always finite; None if it was not told, or is no number
    away_bytes: int | None = None  # of state that is put away; None if it was not told


class Saved(NamedTuple):
    """A checkpoint that is complete."""

    step: int  # the last one that it holds
    at_s: float  # Unix time, by the clock of the rank
    digest: str  # "" for none
    path: str


_TIME = rb"(\d{1,11}(?:\.\d{1,9})?)"
_LOSS = rb"([!-~]{1,400})"  # as any language writes a number: a step counts whatever it says of its loss
_STEP = re.compile(
    rb"^(train|checkpoint|evaluate|other|done) (\d{1,15}) %b(?: (?:%b|-)(?: %b(?: (\d{1,18}))?)?)?$"
    % (_TIME, _TIME, _LOSS),
    re.MULTILINE,
)
_SAVED = re.compile(rb"^(\d{1,15}) %b (-|[0-9a-f]{8,128}) ([^\x00-\x1f\x7f]{1,1024})$" % _TIME, re.MULTILINE)
_KINDS = {kind.value.encode(): kind for kind in StepKind}


def steps_in(lines: bytes) -> list[Begun]:
    """Return the steps that lines tell of, in their order."""
    return [
        Begun(
            _KINDS[kind],
            int(step),
            float(at),
            float(computed) if computed else None,
            _loss_of(loss),
            int(away) if away else None,
        )
        for kind, step, at, computed, loss, away in _STEP.findall(lines)
    ]


def _loss_of(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def saved_in(lines: bytes) -> list[Saved]:
    """Return the checkpoints that lines tell of, in their order."""
    found = []
    for step, at, digest, path in _SAVED.findall(lines):
        try:
            text = path.decode()
        except UnicodeDecodeError:
            continue
        if text.isprintable():
            found.append(Saved(int(step), float(at), "" if digest == b"-" else digest.decode(), text))
    return found
