"""The files of a ring in its attempt's folder, beside those of its coordinator, and the pieces that they name.

places-P.json    the ranks of piece P: number, node, GPU, whether it is used, whether it was left (its processes are
                 proven gone), the last member there, and its pid, 0 if it does not run
add-RANK.json    written by the scheduler: a GPU more

A rank's GPU never changes. A rank that was left is never used again. Source: SPEC F8 to F10; docs/decisions/0015.
Standard library only: supervisors import it.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ....cluster.files.durable import open_folder, read_whole
from ....ring.folder import read_appointment, read_state
from .ranks import RankPlace, Spec

RING = "ring"  # the folder
STOP_FILES = ("cancel.json", "stop.json")  # in an attempt's folder: all of it is to stop
OVER_FILES = ("exit.json", "gone.json")  # in the folder of its part: nothing is left of it
_MAX_FILE_BYTES = 4 << 20


class Piece(NamedTuple):
    """A part of a ring: it starts and ends by itself."""

    number: int
    node: str
    gpus: dict[int, int]  # index on the node, by rank


class RingPart(NamedTuple):
    """The ranks of a ring that one host runs."""

    piece: int  # its number; the coordinator starts with piece 0
    visible: Mapping[int, str]  # what CUDA_VISIBLE_DEVICES calls the GPU of each rank
    folder: str  # for logs and reports of its ranks
    address: str = "127.0.0.1"  # of the machine, for members on others
    is_whole: bool = False  # the ring has no other part: the GPUs that it gets later are this one's too


def encode_part(part: RingPart) -> str:
    """Return a part that is not the whole ring as an argument of a host's `main`."""
    return json.dumps([part.piece, list(part.visible.items()), part.folder, part.address])


def decode_part(text: str) -> RingPart:
    """Return the part that `encode_part` has made an argument of."""
    piece, visible, folder, address = json.loads(text)
    return RingPart(piece, dict(visible), folder, address)


def ring_phase(ring: Path) -> str:
    """Return the phase of a ring that its coordinator wrote last; "starting" before the first."""
    phase = _read_coordinators_state(ring).get("phase")
    return phase if isinstance(phase, str) else "starting"


def is_ring_over(attempt: Path) -> bool:
    """Return whether the ring in an attempt's folder starts no further piece: it has ended, or is to stop."""
    is_to_stop = any((attempt / name).exists() for name in STOP_FILES)
    return is_to_stop or ring_phase(attempt / RING) in ("done", "lost")


def read_lost_members(ring: Path) -> set[int]:
    """Return the members of a ring that are gone with the host that started them: it will start no others."""
    lost = _read_coordinators_state(ring).get("lost")
    return {member for member in lost if type(member) is int} if isinstance(lost, list) else set()


def coordinators_piece(ring: Path) -> int:
    """Return the piece whose host is to run the coordinator: the first one until another is appointed."""
    with suppress(OSError, ValueError):
        return max(read_appointment(ring).piece, 0)
    return 0


def _read_coordinators_state(ring: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        _, state = read_state(ring)
        return state if isinstance(state, dict) else {}
    return {}


def places_file(piece: int) -> str:
    """Return the name of the file in a ring's folder that has the ranks of a piece."""
    return f"places-{piece}.json"


def read_places(ring: Path, piece: int = 0) -> dict[int, tuple[str, int, bool, bool, int, int]]:
    """Return what a piece of a ring reports of each of its ranks: `MemberPlace`s; none if that is not known."""
    rows = _read_rows(ring, places_file(piece), (int, str, int, bool, bool, int, int))
    return {rank: tuple(place) for rank, *place in rows or ()}


def added_gpu_file(rank: int) -> str:
    """Return the name of the file in a ring's folder that adds a GPU."""
    return f"add-{rank}.json"


def given_file(rank: int) -> str:
    """Return the name of the file in a ring's folder that shows that what runs a further GPU was handed over."""
    return f"given-{rank}"


def done_file(piece: int) -> str:
    """Return the name of the file in a ring's folder by which the host of a piece shows that it saw the ring done."""
    return f"done-{piece}"


def orphaned_file(piece: int) -> str:
    """Return the name of the file in a ring's folder by which a host shows that no coordinator answers it."""
    return f"orphaned-{piece}"


def read_added_place(ring: Path, rank: int) -> tuple[str, int] | None:
    """Return node and GPU of a rank that the scheduler adds, None if it does not."""
    rows = _read_rows(ring, added_gpu_file(rank), (str, int))
    return (rows[0][0], rows[0][1]) if rows else None


def read_added_places(ring: Path, first: int) -> list[tuple[str, int]]:
    """Return node and GPU of all ranks that the scheduler has added to a ring, from the first one on."""
    found: list[tuple[str, int]] = []
    while (place := read_added_place(ring, first + len(found))) is not None:
        found.append(place)
    return found


def count_added_ranks(ring: Path, first: int) -> int:
    """Return how many ranks were added to a ring, whether or not the files that say where can be read."""
    count = 0
    while any((ring / name(first + count)).exists() for name in (added_gpu_file, given_file)):
        count += 1
    return count


def _read_rows(ring: Path, name: str, kinds: Sequence[type]) -> list[Any] | None:
    """Return rows of values of these kinds, from a file that any job may have written; None if it has none."""
    rows = _read_json(ring, name)
    are_sound = isinstance(rows, list) and all(
        isinstance(row, list) and [type(value) for value in row] == list(kinds) for row in rows
    )
    return rows if are_sound else None


def _read_json(ring: Path, name: str) -> Any:
    """Return what is in a file that any job may have written, None if that makes no sense.

    Another kind of file, such as a pipe, is not read.
    """
    try:
        folder = open_folder(str(ring))
        try:
            return json.loads(read_whole(folder, name, _MAX_FILE_BYTES))
        finally:
            os.close(folder)
    except (OSError, ValueError, RecursionError):
        return None


def pieces_of(spec: Spec, ring: Path) -> list[Piece]:
    """Return the pieces of a ring: one for each node that it began with, one for each GPU that it got later.

    Args:
        spec: The attempt.
        ring: Folder of its ring; it need not exist.
    """
    nodes = list(dict.fromkeys(place.node for place in spec.ranks))
    pieces = [Piece(number, node, {}) for number, node in enumerate(nodes)]
    for rank, place in enumerate(spec.ranks):
        pieces[nodes.index(place.node)].gpus[rank] = place.gpu
    for rank, (node, gpu) in enumerate(read_added_places(ring, len(spec.ranks)), len(spec.ranks)):
        pieces.append(Piece(len(pieces), node, {rank: gpu}))
    return pieces


def piece_of(spec: Spec, ring: Path, number: int) -> Piece:
    """Return one of the pieces that `pieces_of` returns, for which no other one's file is read.

    Raises:
        ValueError: If it is not known.
    """
    nodes = list(dict.fromkeys(place.node for place in spec.ranks))
    if number < len(nodes):
        own = {rank: place.gpu for rank, place in enumerate(spec.ranks) if place.node == nodes[number]}
        return Piece(number, nodes[number], own)
    rank = len(spec.ranks) + number - len(nodes)
    if (added := read_added_place(ring, rank)) is None:
        raise ValueError(f"{spec.attempt}: it is not known where rank {rank} is")
    return Piece(number, added[0], {rank: added[1]})


def with_added_ranks(spec: Spec, ring: Path, ranks: int) -> Spec:
    """Return an attempt with the GPUs that its ring got later, up to a number of ranks.

    Raises:
        ValueError: If one of them is not known.
    """
    added = [read_added_place(ring, rank) for rank in range(len(spec.ranks), ranks)]
    if None in added:
        raise ValueError(f"{spec.attempt}: it is not known where rank {len(spec.ranks) + added.index(None)} is")
    return spec._replace(ranks=(*spec.ranks, *(RankPlace(*place) for place in added if place)))
