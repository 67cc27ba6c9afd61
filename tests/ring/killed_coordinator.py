"""A coordinator that kills itself or a member just after it has received, sent or written something.

KILLS names moments and victims, in order: `sent Abort=coordinator,received MemberReady=0`, where a number is that of a
member. Nothing counts before generation 2, that is, before the first fault. Each kill is recorded in the ring's folder,
for the next coordinator.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from longshore.ring import coordinator_server, folder, wire
from longshore.ring.coordinator import Coordinator

FOLDER = Path(sys.argv[1])
KILLS = [it.partition("=")[::2] for it in os.environ["KILLS"].split(",")]
GENERATION = [1]  # that the file holds


def passed(moment: str, generation: int) -> None:
    """Kill the victim of the next kill, if this is its moment."""
    done = len(list(FOLDER.glob("killed-*")))
    if generation < 2 or done == len(KILLS) or KILLS[done][0] != moment:
        return
    victim = KILLS[done][1]
    pid = os.getpid() if victim == "coordinator" else int((FOLDER / f"pid-{victim}").read_text())
    (FOLDER / f"killed-{done}").touch()
    os.kill(pid, signal.SIGKILL)


def watch(name: str) -> None:
    """Watch the messages that a method of the coordinator receives."""
    original = getattr(Coordinator, name)

    def received(ring: Coordinator, *arguments: Any) -> None:
        original(ring, *arguments)
        (message,) = [argument for argument in arguments if isinstance(argument, wire.Message)]
        (FOLDER / f"received-{type(message).__name__}").touch()
        passed(f"received {type(message).__name__}", ring.state.generation)

    setattr(Coordinator, name, received)


send, write = coordinator_server._send, folder.write_state


def sending(writer: Any, message: wire.Message, *line: bytes) -> None:
    send(writer, message, *line)
    # The message is in the socket's buffer, and reaches the other side.
    passed(f"sent {type(message).__name__}", GENERATION[0])


def writing(ring: Path, number: int, content: Any) -> None:
    write(ring, number, content)
    GENERATION[0] = content["generation"]
    passed(f"wrote {content['phase']}", content["generation"])


for method in ("receive_member_message", "receive_launcher_message", "receive_scheduler_message"):
    watch(method)
for name, replacement in (("_send", sending), ("write_state", writing)):
    setattr(coordinator_server, name, replacement)
coordinator_server.main()
