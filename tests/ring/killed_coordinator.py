"""A coordinator that kills itself or a member just after it has heard, told or written something.

KILLS says when and whom, in order: `told Abort=coordinator,heard Ready=0`, where a number is that of a member. Nothing
counts before generation 2, that is, before the first fault. What has happened is noted in the ring's folder, for the
coordinator that comes after this one.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from longshore.ring import coordinator, standing, wire
from longshore.ring.rounds import Rounds

FOLDER = Path(sys.argv[1])
KILLS = [it.partition("=")[::2] for it in os.environ["KILLS"].split(",")]
GENERATION = [1]  # that the file holds


def passed(what: str, generation: int) -> None:
    """Kill whom the next of the kills names, if this is its moment."""
    done = len(list(FOLDER.glob("killed-*")))
    if generation < 2 or done == len(KILLS) or KILLS[done][0] != what:
        return
    whom = KILLS[done][1]
    pid = os.getpid() if whom == "coordinator" else int((FOLDER / f"pid-{whom}").read_text())
    (FOLDER / f"killed-{done}").touch()
    os.kill(pid, signal.SIGKILL)


def hearing(name: str) -> None:
    """Look at the messages that one method of the rounds takes."""
    hear = getattr(Rounds, name)

    def heard(rounds: Rounds, *given: Any) -> None:
        hear(rounds, *given)
        (message,) = [it for it in given if isinstance(it, wire.Message)]
        (FOLDER / f"heard-{type(message).__name__}").touch()
        passed(f"heard {type(message).__name__}", rounds.durable.generation)

    setattr(Rounds, name, heard)


tell, write = coordinator._tell, standing.write_file


def telling(writer: Any, message: wire.Message, *line: bytes) -> None:
    tell(writer, message, *line)
    # What was told is in the socket's buffer, and reaches the other side.
    passed(f"told {type(message).__name__}", GENERATION[0])


def writing(folder: Path, name: str, content: Any) -> None:
    write(folder, name, content)
    if name == standing.STATE:
        GENERATION[0] = content["generation"]
        passed(f"wrote {content['phase']}", content["generation"])


for method in ("said", "launcher_said", "desk_said"):
    hearing(method)
for to, call in (("_tell", telling), ("write_file", writing)):
    setattr(coordinator, to, call)
coordinator.main()
