"""Starts an attempt: from its placement to a running supervisor; and lists the attempts that were launched."""

import errno
import logging
import os
import re
import reprlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ....cluster.files.durable import is_there, read_whole
from ....cluster.files.errors import BackendError, error_line
from ....cluster.model.placement import Placement, Share
from ...model.job import is_job_id
from ..protocol import Attempt, RefusedError, refuse_placement, refuse_texts
from .folders import Folders, as_backend_error
from .ranks import RankPlace, Spec, decode
from .supervision import SPEC_BYTES
from .supervisor import STARTED_BEFORE, TWIN

_START_WITHIN_S = 30.0  # a machine under load; usually 0.03
_ROOT = Path(__file__).absolute().parents[4]  # the folder that holds the package
_SUPERVISE = (
    "import os, sys; sys.path.append(sys.argv[1]); "
    "from longshore.scheduler.backends.local.supervisor import main; os._exit(main(sys.argv[2]))"
)


def spec_of(attempt: Attempt, placement: Placement, nodes: Mapping[str, int], own_folder: Path) -> Spec:
    """Return what a supervisor is to run.

    Args:
        attempt: The attempt.
        placement: GPUs for it.
        nodes: GPUs of each node.
        own_folder: Its working directory, unless it names one.

    Raises:
        CannotHonourError: If there are no such GPUs, or one is named twice.
        RefusedError: If a text of it cannot be passed to a program.
    """
    refuse_placement(attempt, placement, nodes)
    refuse_texts(attempt)
    return Spec(
        attempt.name,
        attempt.job,
        attempt.number,
        attempt.command,
        attempt.folder or str(own_folder),
        # Unbuffered: else what a program in Python prints is seen late, and is lost when it is killed.
        {"PATH": os.defpath, "PYTHONUNBUFFERED": "1", **attempt.environment},
        attempt.grace_s,
        None if attempt.limit_s == float("inf") else attempt.limit_s,
        tuple(RankPlace(share.node, gpu) for share in placement for gpu in share.gpus),
        attempt.seats,
        attempt.backups,
        attempt.visible_gpus,
    )


def refuse_what_cannot_start(spec: Spec, *, makes_folder: bool) -> None:
    """Refuse an attempt that would certainly fail at its start.

    Args:
        spec: What is to be run.
        makes_folder: Whether its folder is created for it, and so empty.

    Raises:
        RefusedError: If its program or folder does not exist.
    """
    folder = Path(spec.folder)
    if not makes_folder and not folder.is_absolute():
        raise RefusedError(f"{spec.attempt}: {spec.folder!r} is not an absolute path")
    if not makes_folder and not folder.is_dir():
        raise RefusedError(f"{spec.attempt}: folder {spec.folder!r} does not exist on this machine")
    program = spec.command[0]
    path = str(folder / program) if "/" in program else program
    if shutil.which(path, path=spec.environment["PATH"]) is None:
        raise RefusedError(f"{spec.attempt}: no program {program!r} in {folder} or on {spec.environment['PATH']}")


def spawn_supervisor(path: Path) -> None:
    """Start a supervisor on an attempt's folder, unless there is or was one.

    Args:
        path: The attempt's folder, absolute.

    Raises:
        BackendError: If it is not known whether it started.
    """
    # -I -S: none of the user's settings or site packages, which also makes it start fast. It has nothing of the
    # environment but HOME, for ranks of a user whom the machine does not know.
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _SUPERVISE, str(_ROOT), str(path)]
    null = subprocess.DEVNULL
    environment = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}
    try:
        done = subprocess.run(
            command, stdin=null, stdout=null, stderr=null, cwd="/", env=environment,
            start_new_session=True, timeout=_START_WITHIN_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{path.name}: its supervisor could not be started: {error}") from error
    if done.returncode not in (0, TWIN, STARTED_BEFORE):
        raise BackendError(f"{path.name}: its supervisor ended with {done.returncode} at its start")


log = logging.getLogger(__name__)

SPEC_FILE = "spec.json"
NO_FILE_OF_OURS = (  # errors
    errno.EFBIG, errno.ELOOP, errno.EINVAL, errno.ENXIO,  # too large, a link, a pipe, a socket
    errno.EACCES, errno.EPERM,  # unreadable, as a job can make it
)  # fmt: skip
_ATTEMPT_NAME = re.compile(r"ls-(.+)-([1-9][0-9]{0,8})")
_MAX_NODE_LETTERS = 200  # of a node's name, as in a cluster file
_MAX_GPU = 10**9


def launched_in(folders: Folders) -> dict[str, tuple[Attempt, Placement]]:
    """Return the attempts that were launched and not forgotten, with their GPUs, by name.

    Of one whose file is damaged, which is logged, only the job and number in its name are known, and no GPUs.

    Raises:
        BackendError: If one of them cannot be read.
    """
    found: dict[str, tuple[Attempt, Placement]] = {}
    for name in folders.names_with(SPEC_FILE):
        with as_backend_error(name):
            try:
                spec = _read(folders, name)
                if spec is not None:
                    found[name] = (_attempt(spec), _placement(spec))
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in NO_FILE_OF_OURS:
                    raise
                log.error("%s: its %s cannot be read: %s", name, SPEC_FILE, error_line(error))
                found[name] = (_named(name), ())
    return found


def _read(folders: Folders, name: str) -> Spec | None:
    """Return what an attempt is to run, None if it has just been forgotten.

    Raises:
        ValueError: If its file makes no sense.
        OSError: If it cannot be read.
    """
    with folders.open(name) as folder:
        if folder is None or not is_there(folder, SPEC_FILE):
            return None
        return _checked(decode(read_whole(folder, SPEC_FILE, SPEC_BYTES)), name)


def _checked(spec: Spec, name: str) -> Spec:
    """Return what was read, if it belongs to this attempt and names its GPUs.

    Raises:
        ValueError: If it does not.
    """
    job, number = _numbered(name)
    is_its_own = (spec.attempt, spec.job, spec.number) == (name, job, number) and type(spec.number) is int
    if not is_its_own or not is_job_id(job):
        found = map(reprlib.repr, (spec.attempt, spec.job, spec.number))
        raise ValueError("it is of attempt {}, job {}, number {}".format(*found))
    places = {(rank.node, rank.gpu) for rank in spec.ranks if _is_place(rank)}
    if not places or len(places) < len(spec.ranks):
        raise ValueError("it does not name the GPUs of its ranks")
    return spec


def _is_place(rank: RankPlace) -> bool:
    """Return whether a rank has a node and a GPU; the node's name must be printable."""
    is_node = isinstance(rank.node, str) and 0 < len(rank.node) <= _MAX_NODE_LETTERS and rank.node.isprintable()
    return is_node and type(rank.gpu) is int and 0 <= rank.gpu < _MAX_GPU


def _numbered(name: str) -> tuple[str, int]:
    """Return the job and the number in the name of an attempt, of no job if it has none."""
    found = _ATTEMPT_NAME.fullmatch(name)
    return (found[1], int(found[2])) if found else ("", 0)


def _named(name: str) -> Attempt:
    """Return what is known of an attempt by its name alone."""
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
