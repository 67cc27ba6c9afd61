"""From an attempt and its placement to a supervisor that has taken over."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ....cluster.files.errors import BackendError
from ...model.placement import Placement
from ..protocol import Attempt, RefusedError
from ..refusals import refuse_placement, refuse_texts
from .supervisor.spec import Rank, Spec
from .supervisor.supervisor import STARTED_BEFORE, TWIN

_START_WITHIN_S = 30.0  # a machine under load; usually 0.03
_ROOT = Path(__file__).absolute().parents[4]  # the folder that holds the package
_SUPERVISE = (
    "import os, sys; sys.path.append(sys.argv[1]); "
    "from longshore.scheduler.backends.local.supervisor.supervisor import main; os._exit(main(sys.argv[2]))"
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
        tuple(Rank(share.node, gpu) for share in placement for gpu in share.gpus),
        attempt.seats,
        attempt.backups,
        attempt.visible_gpus,
    )


def refuse_what_cannot_start(spec: Spec, *, makes_folder: bool) -> None:
    """Refuse an attempt that would certainly fail at its start.

    Args:
        spec: What is to be run.
        makes_folder: Whether its folder is made for it, and so empty.

    Raises:
        RefusedError: If its program or folder is not there.
    """
    folder = Path(spec.folder)
    if not makes_folder and not folder.is_absolute():
        raise RefusedError(f"{spec.attempt}: {spec.folder!r} is no absolute path of a folder")
    if not makes_folder and not folder.is_dir():
        raise RefusedError(f"{spec.attempt}: there is no folder {spec.folder!r} on this machine")
    program = spec.command[0]
    wanted = str(folder / program) if "/" in program else program
    if shutil.which(wanted, path=spec.environment["PATH"]) is None:
        raise RefusedError(f"{spec.attempt}: no program {program!r} in {folder} or on {spec.environment['PATH']}")


def spawn_supervisor(path: Path) -> None:
    """Start a supervisor on an attempt's folder; where there is or was one, nothing happens.

    Args:
        path: The attempt's folder, absolute.

    Raises:
        BackendError: If it is not known whether it started.
    """
    # -I -S: nothing of the user's settings or site packages, which also makes it start fast. Nor has it anything of the
    # environment but HOME, for ranks of a user whom the machine does not know.
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _SUPERVISE, str(_ROOT), str(path)]
    silent = subprocess.DEVNULL
    environment = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}
    try:
        done = subprocess.run(
            command, stdin=silent, stdout=silent, stderr=silent, cwd="/", env=environment,
            start_new_session=True, timeout=_START_WITHIN_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{path.name}: its supervisor could not be started: {error}") from error
    if done.returncode not in (0, TWIN, STARTED_BEFORE):
        raise BackendError(f"{path.name}: its supervisor ended with {done.returncode} at its start")
