"""The folder of a ring: what its coordinator is told at its start, and where it keeps its state.

ring.json        the secret and the limits, written by who makes the ring; readable by its user alone
state.json       written by the coordinator before it tells anybody what is in it; has its port
recoveries.json  the last recoveries with the seconds of each phase, for people

The process that coordinates imports this module: standard library only.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..files.durable import open_folder, write_whole
from .wire import SILENCE_S

RING, STATE, RECOVERIES = "ring.json", "state.json", "recoveries.json"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the coordinator waits for what; all in seconds but the last four."""

    silence_s: float = SILENCE_S  # without a word from a member that is declared gone then
    meet_s: float = 15.0  # for members to come back to a coordinator that was started again
    stop_s: float = 5.0  # for a member that hears the coordinator to stop
    arrive_s: float = 600.0  # for the script of a member that has stopped to come to the end of its step
    patience_s: float = 2.0  # for the desk to say who comes
    coming_s: float = 30.0  # for who comes to be there
    gather_s: float = 300.0  # for all to be there at the start
    hint_s: float = 60.0  # without a word or a step of a member, until people are told what may be wrong
    stall_s: float = 60.0  # in which nothing moves although all wait for each other
    frozen_s: float = 60.0  # until even most of the members are declared gone, which have ended themselves by then
    groups: int = 20  # that a process forms before it is started anew: each keeps some descriptors and threads
    slow_steps: int = 5  # in a row for which a member computes far longer than the others, before it is relieved
    well_steps: int = 10  # in a row for which it does not, before it has its seat again
    hold_steps: int = 100  # that its backup takes at least


@dataclass(frozen=True, slots=True)
class Settings:
    """What a coordinator is told at its start."""

    seats: int
    secret: str
    host: str = "127.0.0.1"
    limits: Limits = field(default_factory=Limits)
    spares: int = 0  # members that it is started with beside
    backups: int = 0  # slow members in whose place others may compute at the same time


def make_ring(
    folder: Path, seats: int, host: str = "127.0.0.1", limits: Limits | None = None, *,
    spares: int = 0, backups: int = 0,
) -> Settings:  # fmt: skip
    """Make the folder of a ring, unless it is there already.

    Args:
        folder: Of this ring alone.
        seats: In the ring.
        host: Address at which members reach the coordinator.
        limits: If others than the usual ones.
        spares: Members that it is started with beside.
        backups: Slow members in whose place others may compute at the same time.

    Returns:
        What the coordinator will be told, with a secret that was drawn for this ring.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (folder / RING).exists():
        return read_settings(folder)
    settings = Settings(seats, secrets.token_hex(16), host, limits or Limits(), spares, backups)
    write_file(folder, RING, asdict(settings))
    return settings


def read_settings(folder: Path) -> Settings:
    """Return what the coordinator of a ring is told.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is damaged.
    """
    content = json.loads((folder / RING).read_bytes())
    try:
        return Settings(**{**content, "limits": Limits(**content["limits"])})
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
