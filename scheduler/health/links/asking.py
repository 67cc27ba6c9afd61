"""A scheduler's part in one probe: it tells one agent to receive from another, and judges what it hears.

Source: SPEC F4.
"""

import socket
import time
from enum import StrEnum
from typing import NamedTuple

from ...preflight.link_checks.bandwidth import MOST_BYTES
from .messages import (
    Order,
    ProbePlace,
    Told,
    UnprovenError,
    new_id,
    opened_told,
    read_line,
    sealed,
    sender_at,
    write_line,
)
from .prober import BrokenError, connect
from .transfer import BLOCK, LIMIT_S, Figure

PROBE_S = 0.32  # for all of a probe: three one after the other fit into a second
ASKED_S = 0.15  # for an agent to be reached


class State(StrEnum):
    """What a probe found."""

    MEASURED = "measured"
    BROKEN = "broken"  # the sender's node answers the scheduler, but not the receiver
    UNKNOWN = "unknown"


class Outcome(NamedTuple):
    """What came of a probe."""

    state: State
    bytes_per_s: float = 0.0
    why: str = ""  # if it is broken, or unknown


def probe(sender: ProbePlace, receiver: ProbePlace, limit_s: float = PROBE_S) -> Outcome:
    """Let one agent send to another, and return what that tells of the link.

    Args:
        sender: Where the one listens.
        receiver: Where the other does.
        limit_s: For all of it.
    """
    began_s = time.monotonic()
    until_s, order = began_s + limit_s, new_id()
    asked = Order(id=order, limit_s=LIMIT_S, sender=sender_at(sender, Order(id=order, limit_s=LIMIT_S)))
    try:
        with socket.create_connection((receiver.address, receiver.port), ASKED_S) as connection:
            write_line(connection, sealed(receiver.key, asked), until_s)
            told = opened_told(receiver.key, read_line(connection, until_s))
    except (OSError, UnprovenError) as error:
        return Outcome(State.UNKNOWN, why=f"the agent that should receive does not answer: {error}")
    took_s = time.monotonic() - began_s
    if told.id != order:
        return Outcome(State.UNKNOWN, why="the agent that should receive tells of another probe")
    if told.broken and not _answers(sender, until_s):
        return Outcome(State.UNKNOWN, why=f"the agent that should send does not answer: {told.broken}")
    return _judged(told, took_s)


def _judged(told: Told, took_s: float) -> Outcome:
    """Return what an agent's word is worth: what cannot be is not known.

    Args:
        told: Its word.
        took_s: All of the probe, by the scheduler's clock.
    """
    if told.broken or told.failed:
        return Outcome(State.BROKEN if told.broken else State.UNKNOWN, why=told.broken or told.failed)
    if not 0 < told.counted_bytes <= MOST_BYTES + BLOCK or not 0.0 < told.seconds <= took_s:
        words = f"{told.counted_bytes} bytes in {told.seconds:.3g} s of {took_s:.3g} s cannot be"
        return Outcome(State.UNKNOWN, why=words)
    return Outcome(State.MEASURED, Figure(told.counted_bytes, told.seconds).bytes_per_s)


def _answers(place: ProbePlace, until_s: float) -> bool:
    """Say whether an agent answers the scheduler; one that does not says nothing of the links of its node."""
    order = Order(id=new_id(), limit_s=LIMIT_S)
    try:
        connect(sender_at(place, order), until_s).close()
    except (BrokenError, OSError, UnprovenError):
        return False
    return True
