"""Answers job_submit.lua, which asks before it lets a job of sbatch in: from memory, so that no submission has to wait.

One line in, `NODES TAB GPUS-ON-EACH`, and one line out: `hold`, or `refuse TAB REASON`.
"""

import logging
import re
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from .....cluster.files.errors import BackendError

log = logging.getLogger(__name__)

_PATIENCE_S = 0.2  # with whoever asks; the plug-in waits about as long
_MOST_BYTES = 256
_BACKLOG = 64
AGAIN_S = 5.0  # between two looks at whether another scheduler still answers
_ASKED = re.compile(rb"(\d{1,5})\t(\d{1,5})\n")


class Door:
    """Answers at a socket, in a thread of its own, until the process ends.

    Args:
        path: Of the socket.
        nodes: GPUs of each node.
        again_s: Between two looks at whether another scheduler still answers.

    Raises:
        BackendError: If the socket cannot be made.
    """

    def __init__(self, path: Path, nodes: Mapping[str, int], *, again_s: float = AGAIN_S) -> None:
        self._path, self._nodes, self._after_s = path, dict(nodes), again_s
        self._is_open, self._again_s = False, 0.0
        self._open()

    def see(self) -> None:
        """Answer from now on, if it was another scheduler that did, and it has ended."""
        if not self._is_open and time.monotonic() >= self._again_s:
            try:
                self._open()
            except BackendError as error:
                log.warning("%s", error)

    def _open(self) -> None:
        self._again_s = time.monotonic() + self._after_s
        listener = socket.socket(socket.AF_UNIX)
        try:
            if _is_answered(self._path):
                listener.close()
                return
            if self._path.is_socket():  # of a scheduler that has ended
                self._path.unlink()
            listener.bind(str(self._path))
            self._path.chmod(0o666)  # Slurm's controller may be another user, and what is asked is no secret.
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise BackendError(f"no socket for job_submit.lua can be made at {self._path}: {error}") from error
        threading.Thread(target=_answer_all, args=(listener, self._nodes), name="door", daemon=True).start()
        self._is_open = True


def _is_answered(path: Path) -> bool:
    """Say whether another scheduler answers: one that waits to take over, or that this one is to take over from.

    Raises:
        OSError: If there is something else.
    """
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_PATIENCE_S)
        try:
            asking.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (BlockingIOError, TimeoutError):  # so many ask it
            return True
    return True


def _answer_all(listener: socket.socket, nodes: Mapping[str, int]) -> None:
    while True:
        try:
            asking, _ = listener.accept()
            with asking:
                asking.settimeout(_PATIENCE_S)
                if asked := asking.recv(_MOST_BYTES):  # else it was only seen whether anybody answers
                    asking.sendall(answer(asked, nodes))
        except OSError as error:
            log.warning("job_submit.lua was not answered: %s", error)


def answer(asked: bytes, nodes: Mapping[str, int]) -> bytes:
    """Return the answer to a question.

    Args:
        asked: The question.
        nodes: GPUs of each node.
    """
    found = _ASKED.fullmatch(asked)
    if found is None:
        return b"refuse\tthis was not asked by Longshore's job_submit.lua\n"
    wanted, gpus = int(found[1]), int(found[2])
    reason = why_never(wanted, gpus, nodes)
    return f"refuse\t{reason}\n".encode() if reason else b"hold\n"


def why_never(wanted: int, gpus: int, nodes: Mapping[str, int]) -> str:
    """Return why a job can never be placed, "" if it can.

    Args:
        wanted: Nodes that it needs.
        gpus: That it needs on each of them.
        nodes: GPUs of each node.
    """
    able = sum(there >= gpus for there in nodes.values())
    if able >= wanted > 0 and gpus > 0:
        return ""
    return f"{wanted} nodes with {gpus} GPUs each are asked for, and there are {able}"
