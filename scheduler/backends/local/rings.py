"""The rings of attempts, for the scheduler: how they stand, and which GPUs come and go."""

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path

from ....cluster.files.errors import BackendError
from ...failover.asking import RingDesk, ask_report, last_report, retire
from ...failover.wire import Report
from ...files.durable import open_folder, read_whole, write_first
from ..protocol import MemberPlace
from .folders import Folders, told_as_backend_error
from .supervisor.ring_host import PLACES, RING, add_name, members_in, places_in

_PLACE_BYTES = 4096


class LocalRings:
    """What the local backend offers of the protocol `Seats`; its methods say there what they do.

    Args:
        folders: Of the attempts.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def _ring(self, name: str) -> Path:
        """Return the folder of an attempt's ring.

        Raises:
            BackendError: If that is no name of an attempt, or a link lies in its place: it may lead to another's ring.
        """
        path = self._folders.path(name)
        if path.is_symlink():
            raise BackendError(f"a link lies in the place of the folder of {name}")
        return path / RING

    def ring(self, name: str) -> Report | None:
        """Return how the ring of an attempt stands, or stood last if nobody answers; None of one that has none.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        return ask_report(self._ring(name)) or last_report(self._ring(name))

    def retire(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Let the members on some GPUs leave the ring of an attempt, and say whether it goes on without them.

        Raises:
            BackendError: If that is no name of an attempt, or its coordinator does not answer.
        """
        members = {it: reason for it, place in enumerate(members_in(self._ring(name))) if place in gpus}
        try:
            return retire(self._ring(name), members)
        except TimeoutError as error:
            raise BackendError(f"{name}: {error}") from error

    def desk(self, name: str, wake: Callable[[], object]) -> RingDesk:
        """Return a desk for the ring of an attempt.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        ring = self._ring(name)
        return RingDesk(ring, wake, ring / PLACES)

    def places(self, name: str) -> list[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, by rank; None if that cannot be told yet.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        found = places_in(self._ring(name))
        return None if found is None else [MemberPlace(*it) for it in found]

    def add(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Let a ring have one GPU more; again, it does nothing.

        Raises:
            BackendError: If that cannot be written down, there is no such ring, or the rank is another GPU's.
        """
        with told_as_backend_error(name), self._folders.open(name) as folder:
            content = json.dumps([[node, gpu]]).encode()
            if folder is None:
                raise BackendError(f"{name} is not there, so its ring cannot have GPU {gpu} of {node}")
            inside = self._open_ring(folder, name)
            try:
                if not write_first(inside, add_name(rank), content):
                    known = read_whole(inside, add_name(rank), _PLACE_BYTES)
                    if known != content:
                        raise BackendError(f"rank {rank} of {name} is on {known.decode(errors='replace')}")
            finally:
                os.close(inside)

    def _open_ring(self, folder: int, name: str) -> int:
        """Open the folder of a ring.

        Raises:
            BackendError: If there is none.
        """
        try:
            return open_folder(RING, inside=folder)
        except FileNotFoundError as error:
            raise BackendError(f"{name} has no ring") from error
