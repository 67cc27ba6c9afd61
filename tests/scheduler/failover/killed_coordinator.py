"""A coordinator that kills itself, once in its ring's life, just after it has heard or told a message of one kind.

KILL_AT says when: `told Abort`, `heard Stopped`, `wrote` and so on; nothing counts before generation 2.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from longshore.scheduler.failover import coordinator, settings, wire
from longshore.scheduler.failover.rounds import Rounds

KIND, _, NAME = os.environ["KILL_AT"].partition(" ")
MARK = Path(sys.argv[1]) / "coordinator-was-killed"


def end_once(rounds: Rounds | None = None) -> None:
    if not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)


heard, tell, write = Rounds.said, coordinator._tell, settings.write_file


def said(rounds: Rounds, number: int, message: wire.Message, now_s: float) -> None:
    heard(rounds, number, message, now_s)
    if KIND == "heard" and type(message).__name__ == NAME and rounds.durable.generation > 1:
        end_once()


def telling(writer: Any, message: wire.Message, *line: bytes) -> None:
    tell(writer, message, *line)
    if KIND == "told" and type(message).__name__ == NAME and getattr(message, "generation", 2) > 1:
        end_once()  # What was told is in the socket's buffer, and reaches the other side.


def writing(folder: Path, name: str, content: Any) -> None:
    write(folder, name, content)
    if KIND == "wrote" and name == settings.STATE and content["phase"] == NAME and content["generation"] > 1:
        end_once()


for owner, name, call in (
    (Rounds, "said", said),
    (coordinator, "_tell", telling),
    (coordinator, "write_file", writing),
):
    setattr(owner, name, call)
coordinator.main()
