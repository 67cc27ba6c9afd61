"""What a worker of Ray starts on a node: a supervisor that outlives it. Standard library only."""

import json
import os
import traceback
from contextlib import suppress
from pathlib import Path

from ..shared_folder.node import Grant, run_part
from .launcher import gpus_among


def start_part(path: str, token: str, node: str) -> int:
    """Start the supervisor of an attempt's part as a daemon, and return at once.

    Call it in a session of its own. Its standard output ends when the daemon has ended.

    Args:
        path: The attempt's folder.
        token: Of the claim.
        node: Name of this node.

    Returns:
        0.

    Raises:
        OSError: If there can be no further process.
    """
    if os.fork() == 0:
        _live(path, token, node)
    return 0


def _live(path: str, token: str, node: str) -> None:
    code = 1
    try:
        _undo_worker_settings()
        # As JSON, from the worker that has started this.
        gpus = gpus_among(json.loads(os.environ["LONGSHORE_GRANTED"]), node)
        code = run_part(path, token, Grant("Ray", node, gpus, [str(gpu) for gpu in gpus]))
    except BaseException:  # Every exit is the same: the code that forked this process must not continue in it.
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _undo_worker_settings() -> None:
    """Undo, where allowed, what Ray sets for its workers: a low priority, and to be killed first for memory."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
