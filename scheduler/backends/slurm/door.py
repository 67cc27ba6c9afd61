"""Answers job_submit.lua, which asks before it lets a job of sbatch in: from memory, so that no submission has to wait.

One line in, `NODES TAB GPUS-ON-EACH`, and one line out: `hold`, or `refuse TAB REASON`.
"""

import logging
import re
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from ....cluster.errors import BackendError

log = logging.getLogger(__name__)

_PATIENCE_S = 0.2  # with whoever asks; the plug-in waits about as long
_MOST_BYTES = 256
_BACKLOG = 64
_ASKED = re.compile(rb"(\d{1,5})\t(\d{1,5})\n")


def answer_at(path: Path, nodes: Mapping[str, int]) -> None:
    """Answer at a socket, in a thread of its own, until the process ends.

    Args:
        path: Of the socket.
        nodes: GPUs of each node.

    Raises:
        BackendError: If the socket cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():  # of a scheduler that has ended
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o666)  # Slurm's controller may be another user, and what is asked is no secret.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise BackendError(f"no socket for job_submit.lua can be made at {path}: {error}") from error
    threading.Thread(target=_answer_all, args=(listener, dict(nodes)), name="door", daemon=True).start()


def _answer_all(listener: socket.socket, nodes: Mapping[str, int]) -> None:
    while True:
        try:
            asking, _ = listener.accept()
            with asking:
                asking.settimeout(_PATIENCE_S)
                asking.sendall(answer(asking.recv(_MOST_BYTES), nodes))
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
