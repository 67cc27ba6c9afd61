"""Rings of backends whose attempts' folders the scheduler can read: class `FolderRings`."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ....cluster.files.durable import is_there, read_whole, write_first
from ....cluster.files.errors import BackendError
from ....ring.ring_client import (
    LOOPBACK,
    RingClient,
    read_written_ring_report,
    request_ring_report,
    retire_members,
)
from ....ring.wire import RingReport
from ..protocol import Backend, MemberPlace
from .folders import AttemptFolders, as_backend_error, opened_folder
from .ring_files import RING, added_gpu_file, places_file, read_places

_PLACE_BYTES = 4096


class FolderRings(Backend):
    """The methods of a backend's rings, by the files in `ring/` of an attempt's folder (ring_files.py).

    As it is, one host runs the whole ring, on this machine. A backend with further machines overrides the methods that
    begin with an underscore.
    """

    _folders: AttemptFolders

    def ring_report(self, name: str) -> RingReport | None:
        """Return the state of an attempt's ring, the last known one if its coordinator does not answer."""
        ring = self._ring_folder(name)
        return request_ring_report(ring, self._ring_hosts()) or read_written_ring_report(ring)

    def retire_members(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Remove the members on some GPUs from the ring of an attempt, and return whether it continues without them."""
        places = self._read_ring_places(name)
        members = {place.member: reason for place in places if (place.node, place.gpu) in gpus and place.member >= 0}
        try:
            return retire_members(self._ring_folder(name), members, self._ring_hosts())
        except TimeoutError as error:
            raise BackendError(f"{name}: {error}") from error

    def connect_to_ring(self, name: str, wake: Callable[[], object]) -> RingClient:
        """Return a connection to the coordinator of a ring."""
        ring = self._ring_folder(name)
        return RingClient(ring, wake, lambda: self._ring_files(ring), self._ring_hosts)

    def ring_places(self, name: str) -> Sequence[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, by rank; None if that is not known yet."""
        return self._read_ring_places(name) or None

    def add_to_ring(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Add a GPU to a ring, which starts a member there; again, this does nothing."""
        with as_backend_error(name), self._folders.open(name) as folder:
            content = json.dumps([[node, gpu]]).encode()
            if folder is None:
                raise BackendError(f"{name} does not exist, so its ring cannot have GPU {gpu} of {node}")
            if not is_there(folder, RING):
                raise BackendError(f"{name} has no ring")
            with opened_folder(RING, folder) as ring:
                if not write_first(ring, added_gpu_file(rank), content):
                    known = read_whole(ring, added_gpu_file(rank), _PLACE_BYTES)
                    if known != content:
                        raise BackendError(f"rank {rank} of {name} is on {known.decode(errors='replace')}")
        self._start_added(name, rank)

    def _ring_folder(self, name: str) -> Path:
        """Return the folder of an attempt's ring."""
        path = self._folders.path(name)
        if path.is_symlink():  # It may lead to the ring of another attempt.
            raise BackendError(f"the folder of {name} is a link")
        return path / RING

    def _ring_hosts(self) -> Collection[str]:
        """Return the addresses at which coordinators may be."""
        return LOOPBACK

    def _ring_files(self, ring: Path) -> Collection[Path]:
        """Return the files of a ring by which its places change."""
        return [ring / places_file(0)]

    def _read_ring_places(self, name: str) -> list[MemberPlace]:
        """Return the GPUs that a ring was given, by rank; none if that is not known yet."""
        found = read_places(self._ring_folder(name))
        return [MemberPlace(*found[rank]) for rank in range(len(found))] if [*found] == [*range(len(found))] else []

    def _start_added(self, name: str, rank: int) -> None:
        """Start what runs a GPU that was added to a ring, unless that was done."""
