"""The folder of a ring: `RingSettings`, the coordinator's state, and which launcher is to run the coordinator.

ring.json         the secret and the limits, written by the process that makes the ring; only its user can read it
state-N.json      what the coordinator has decided, and its address: the file of the greatest number counts
appointed-E.json  by whom, since epoch E, the coordinator is run: written by the scheduler when its machine is lost
recoveries.json   the last recoveries with the seconds of each phase, for people

A ring may have two coordinators for a while: one on a machine that seems lost and is not, and the one of a later epoch.
Only one of them can write the next number of the state (`write_state`), and each writes before it sends what depends on
that. So the other one decides nothing any more. Source: SPEC F8 to F10; docs/decisions/0015. Standard library only.
"""

import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..cluster.files.durable import open_folder, read_whole, write_first, write_whole
from .membership import RingLimits

RING, RECOVERIES = "ring.json", "recoveries.json"
MAX_STATE_BYTES: Final = 1 << 24
_STATE, _APPOINTED = re.compile(r"state-(\d{1,15})\.json"), re.compile(r"appointed-(\d{1,15})\.json")
_KEPT_STATES: Final = 16  # files of earlier ones: others may be reading them
_MAX_READS: Final = 20
_MAX_APPOINTMENT_BYTES: Final = 1 << 16
_MAX_NUMBER: Final = 1 << 31  # of a piece or a member, below


@dataclass(frozen=True, slots=True)
class RingSettings:
    """What a coordinator needs to know at its start."""

    seats: int
    secret: str
    limits: RingLimits = field(default_factory=RingLimits)
    spares: int = 0  # members beside the seats at the start
    backups: int = 0  # slow members that may have backups at the same time


class Appointment(NamedTuple):
    """Who is to run the coordinator."""

    epoch: int  # 0 from the start of the ring on
    piece: int  # number of the launcher's part of the ring
    gone: tuple[int, ...] = ()  # members that are lost with the machine of the coordinator before


class SupersededError(OSError):
    """Another coordinator has written the state."""


def make_ring_folder(
    folder: Path, seats: int, limits: RingLimits | None = None, *, spares: int = 0, backups: int = 0
) -> RingSettings:  # fmt: skip
    """Make the folder of a ring, unless it exists; return what is in it, with a secret that was drawn for this ring.

    Several processes may do it at once, on any machine that has the folder: the settings of the first one count.

    Args:
        folder: Of this ring alone.
        seats: As in `RingSettings`, like the rest.
        limits: The usual ones by default.
        spares: Members beside the seats at the start.
        backups: Slow members that may have backups at the same time.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = RingSettings(seats, secrets.token_hex(16), limits or RingLimits(), spares, backups)
    opened = open_folder(str(folder))
    try:
        write_first(opened, RING, json.dumps(asdict(settings)).encode())
    finally:
        os.close(opened)
    return read_settings(folder)


def remove_ring(folder: Path) -> None:
    """Remove the files of a ring that is over from its folder; logs of members stay.

    Raises:
        OSError: If one cannot be removed.
    """
    for file in folder.iterdir():
        if file.name in (RECOVERIES, RING) or _STATE.fullmatch(file.name) or _APPOINTED.fullmatch(file.name):
            file.unlink(missing_ok=True)


def read_settings(folder: Path) -> RingSettings:
    """Return the settings of a ring's coordinator.

    Raises:
        OSError: If they cannot be read.
        ValueError: If they are damaged.
    """
    content = json.loads((folder / RING).read_bytes())
    try:
        return RingSettings(**{**content, "limits": RingLimits(**content["limits"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{folder / RING}: {error}") from error


def write_file(folder: Path, name: str, content: object) -> None:
    """Write a file of the ring's folder, whole or not at all.

    Raises:
        OSError: If it cannot be written.
    """
    opened = open_folder(str(folder))
    try:
        write_whole(opened, name, json.dumps(content).encode())
    finally:
        os.close(opened)


def state_file(number: int) -> str:
    """Return the name of the file that has the state of a number."""
    return f"state-{number}.json"


def state_number(folder: Path) -> int:
    """Return the greatest number of the state, 0 before the first.

    Raises:
        OSError: If the folder cannot be read.
    """
    opened = open_folder(str(folder))
    try:
        return max(_numbers(opened, _STATE), default=0)
    finally:
        os.close(opened)


def read_state(folder: Path) -> tuple[int, Any]:
    """Return the state of the greatest number, as the file has it, and that number; 0 and {} before the first.

    Any job may have written the file.

    Raises:
        OSError: If it cannot be read, or is something else than a file.
        ValueError: If it is damaged; so it is with a RecursionError.
    """
    opened = open_folder(str(folder))
    try:
        for _ in range(_MAX_READS):
            number = max(_numbers(opened, _STATE), default=0)
            with suppress(FileNotFoundError):  # removed meanwhile, so that there are later ones
                return number, json.loads(read_whole(opened, state_file(number), MAX_STATE_BYTES)) if number else {}
        raise OSError(f"{folder}: the state is written faster than it can be read")
    finally:
        os.close(opened)


def write_state(folder: Path, number: int, content: object) -> None:
    """Write the state of a number, which is the next after that of the last one known.

    Raises:
        SupersededError: If another process has written that number, or a later one.
        OSError: If it cannot be written.
    """
    opened = open_folder(str(folder))
    try:
        is_first = write_first(opened, state_file(number), json.dumps(content).encode())
        numbers = _numbers(opened, _STATE)
        # The file of this number may have been removed since: then there are later ones.
        if not is_first or max(numbers, default=number) > number:
            raise SupersededError(f"another coordinator has written state {max(numbers, default=number)}")
        for old in sorted(numbers)[:-_KEPT_STATES]:
            with suppress(FileNotFoundError):
                os.unlink(state_file(old), dir_fd=opened)
    finally:
        os.close(opened)


def appoint(folder: Path, appointment: Appointment) -> bool:
    """Let another launcher run the coordinator; return False if that epoch is another one's.

    Raises:
        OSError: If it cannot be written.
    """
    opened = open_folder(str(folder))
    try:
        content = json.dumps({"piece": appointment.piece, "gone": list(appointment.gone)}).encode()
        if write_first(opened, f"appointed-{appointment.epoch}.json", content):
            return True
    finally:
        os.close(opened)
    return read_appointment(folder) == appointment  # a file system may repeat a request that it has fulfilled


def read_appointment(folder: Path) -> Appointment:
    """Return who runs the coordinator at present: the launcher of piece 0 until another one is appointed.

    Raises:
        OSError: If that cannot be read.
        ValueError: If it makes no sense.
    """
    opened = open_folder(str(folder))
    try:
        epoch = max(_numbers(opened, _APPOINTED), default=0)
        if not epoch:
            return Appointment(0, 0)
        content = json.loads(read_whole(opened, f"appointed-{epoch}.json", _MAX_APPOINTMENT_BYTES))
        piece, gone = content["piece"], content["gone"]
        if not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in [piece, *gone]):
            raise ValueError(f"{folder}: no numbers of a piece and of members: {content}")
        return Appointment(epoch, piece, tuple(gone))
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{folder}: the appointment makes no sense: {error}") from error
    finally:
        os.close(opened)


def _numbers(folder: int, kind: re.Pattern[str]) -> list[int]:
    return [int(found[1]) for name in os.listdir(folder) if (found := kind.fullmatch(name))]
