"""Attempts by what is in their folders, whether the scheduler knows them or not."""

import errno
import logging
import re
import reprlib

from ...files.durable import is_there, read_whole
from ...model.error_words import words_of
from ...model.job_id import is_job_id
from ...model.placement import Placement, Share
from ..protocol import Attempt
from .folders import Folders, told_as_backend_error
from .supervisor.spec import Rank, Spec, decode
from .supervisor.supervision import SPEC_BYTES

log = logging.getLogger(__name__)

SPEC = "spec.json"
NO_FILE_OF_OURS = (  # errors
    errno.EFBIG, errno.ELOOP, errno.EINVAL, errno.ENXIO,  # too large, a link, a pipe, a socket
    errno.EACCES, errno.EPERM,  # may not be read, as a job can see to
)  # fmt: skip
_NAME = re.compile(r"ls-(.+)-([1-9][0-9]{0,8})")
_MOST_LETTERS = 200  # of a node's name, as in a cluster file
_MOST_GPU = 10**9


def remembered_in(folders: Folders) -> dict[str, tuple[Attempt, Placement]]:
    """Return the attempts that were launched and not forgotten, with their GPUs, by name.

    Of one whose file makes no sense, which the log has, no more is told than its name does, and no GPUs.

    Raises:
        BackendError: If one of them cannot be read.
    """
    found: dict[str, tuple[Attempt, Placement]] = {}
    for name in folders.names_with(SPEC):
        with told_as_backend_error(name):
            try:
                spec = _read(folders, name)
                if spec is not None:
                    found[name] = (_attempt(spec), _placement(spec))
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in NO_FILE_OF_OURS:
                    raise
                log.error("%s: its %s cannot be read: %s", name, SPEC, words_of(error))
                found[name] = (_named(name), ())
    return found


def _read(folders: Folders, name: str) -> Spec | None:
    """Return what an attempt is to run, None if it was forgotten just now.

    Raises:
        ValueError: If its file makes no sense.
        OSError: If it cannot be read.
    """
    with folders.open(name) as folder:
        if folder is None or not is_there(folder, SPEC):
            return None
        return _checked(decode(read_whole(folder, SPEC, SPEC_BYTES)), name)


def _checked(spec: Spec, name: str) -> Spec:
    """Return what was read, if it is of this attempt and says what it holds.

    Raises:
        ValueError: If it does not.
    """
    job, number = _numbered(name)
    is_its_own = (spec.attempt, spec.job, spec.number) == (name, job, number) and type(spec.number) is int
    if not is_its_own or not is_job_id(job):
        told = map(reprlib.repr, (spec.attempt, spec.job, spec.number))
        raise ValueError("it is of attempt {}, job {}, number {}".format(*told))
    places = {(rank.node, rank.gpu) for rank in spec.ranks if _is_place(rank)}
    if not places or len(places) < len(spec.ranks):
        raise ValueError("it does not say where its ranks run")
    return spec


def _is_place(rank: Rank) -> bool:
    """Say whether a rank runs where a GPU can be; the name of its node is written where people read it."""
    is_node = isinstance(rank.node, str) and 0 < len(rank.node) <= _MOST_LETTERS and rank.node.isprintable()
    return is_node and type(rank.gpu) is int and 0 <= rank.gpu < _MOST_GPU


def _numbered(name: str) -> tuple[str, int]:
    """Return the job and the number that the name of an attempt tells, none of any job if it tells none."""
    told = _NAME.fullmatch(name)
    return (told[1], int(told[2])) if told else ("", 0)


def _named(name: str) -> Attempt:
    """Return what the name of an attempt tells of it."""
    return Attempt(name, *_numbered(name), command=(), folder="", environment={})


def _attempt(spec: Spec) -> Attempt:
    limit_s = float("inf") if spec.limit_s is None else spec.limit_s
    return Attempt(
        spec.attempt, spec.job, spec.number, spec.command, spec.folder, spec.environment, spec.grace_s, limit_s,
        seats=spec.seats, backups=spec.backups, visible_gpus=spec.visible_gpus,
    )  # fmt: skip


def _placement(spec: Spec) -> Placement:
    nodes: dict[str, list[int]] = {}
    for rank in spec.ranks:
        nodes.setdefault(rank.node, []).append(rank.gpu)
    return tuple(Share(node, tuple(sorted(gpus))) for node, gpus in nodes.items())
