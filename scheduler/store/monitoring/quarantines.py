"""Quarantines: GPUs, links and nodes that take no job until they are cleared. Rows are never deleted."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, or_, select, update

from ...model.quarantine import Entry, Place
from ...rules.device_quarantine import closed_gpus
from ..database.schema import quarantine
from ..rows.upsert import insert_if_absent

QUARANTINE = "quarantine"  # kind of events
SET, CLEARED, NOT_CLEARED, REFUSED = "quarantined", "cleared", "not cleared", "alarm"

_PLACE = tuple(quarantine.c[name] for name in Place._fields)
_REST = tuple(
    quarantine.c["check_name" if name == "check" else name] for name in Entry._fields if name not in ("seq", "place")
)
_ALL = select(quarantine.c.seq, *_PLACE, *_REST).order_by(quarantine.c.seq)
_OPEN = _ALL.where(quarantine.c.cleared_s.is_(None))
_SINCE = _ALL.where(
    or_(
        quarantine.c.cleared_s.is_(None),
        quarantine.c.since_s >= bindparam("after_s"),
        quarantine.c.cleared_s >= bindparam("after_s"),
    )
)
_PLACES = select(*_PLACE).where(quarantine.c.cleared_s.is_(None)).order_by(quarantine.c.seq)
_OF_SEQ = update(quarantine).where(quarantine.c.seq == bindparam("of_seq"), quarantine.c.cleared_s.is_(None))
_SEEN = _OF_SEQ.values(symptom_s=bindparam("seen_s"), evidence=bindparam("found"))
_CHECKED = _OF_SEQ.values(checked=bindparam("told"), tries=bindparam("times"), not_before_s=bindparam("until_s"))
_CLEAR = _OF_SEQ.values(cleared_s=bindparam("at_s"), cleared_by=bindparam("who"), checked=bindparam("told"))


def open_entries(tx: Connection) -> list[Entry]:
    """Return what stands in quarantine, the first first."""
    return [_entry(row) for row in tx.execute(_OPEN)]


def entries_since(tx: Connection, after_s: float) -> list[Entry]:
    """Return what stands in quarantine, or came there or was cleared since a Unix time."""
    return [_entry(row) for row in tx.execute(_SINCE, {"after_s": after_s})]


def quarantined(tx: Connection, sizes: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    """Return node and index of the GPUs that take no job as they, or links of them, stand in quarantine.

    Args:
        tx: Transaction.
        sizes: GPUs of each node of the cluster.
    """
    places = [Place(*row) for row in tx.execute(_PLACES)]
    return frozenset(closed_gpus(places, sizes)) if places else frozenset()


def add_entry(tx: Connection, entry: Entry) -> bool:
    """Put something into quarantine, and return whether it was not there for the same cause already."""
    values: dict[str, Any] = {**entry._asdict(), **entry.place._asdict(), "scope": entry.place.scope}
    values["check_name"] = values.pop("check")
    del values["place"], values["seq"]
    return insert_if_absent(tx, quarantine, values)


def note_symptom(tx: Connection, entry: Entry, evidence: str, at_s: float) -> None:
    """Note that what stands in quarantine shows its symptom again."""
    tx.execute(_SEEN, {"of_seq": entry.seq, "seen_s": max(at_s, entry.symptom_s), "found": evidence})


def note_failed_checks(tx: Connection, entry: Entry, evidence: str, tries: int, not_before_s: float) -> None:
    """Note that checks that were to clear something did not pass."""
    tx.execute(_CHECKED, {"of_seq": entry.seq, "told": evidence, "times": tries, "until_s": not_before_s})


def clear_entries(tx: Connection, entries: Iterable[Entry], by: str, evidence: str, now_s: float) -> int:
    """End quarantines, and return how many stood."""
    return sum(
        tx.execute(_CLEAR, {"of_seq": it.seq, "at_s": now_s, "who": by, "told": evidence}).rowcount for it in entries
    )


def _entry(row: Row[Any]) -> Entry:
    values: Sequence[Any] = tuple(row)
    places = len(Place._fields)
    return Entry(values[0], Place(*values[1 : 1 + places]), *values[1 + places :])
