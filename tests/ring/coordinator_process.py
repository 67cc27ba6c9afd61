"""A coordinator in a process of its own, and peers that connect to it."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longshore.ring import coordinator_server, wire
from longshore.ring.folder import RingSettings, make_ring_folder, read_state
from longshore.ring.wire import greet_blocking
from tests.support import processes
from tests.support.processes import PYTHON_PATH

from .trial import LIMIT_S


class Peer:
    """A connection to a coordinator that behaves as a member, or only sends what a test sends."""

    def __init__(self, ring: "Process", role: str, member: int = -1, generation: int = 0) -> None:
        self.member, self.beats = member, 0
        self.socket = socket.create_connection((ring.host, ring.port), LIMIT_S)
        ring.peers.append(self)
        self.received: list[wire.Message] = []
        hello = wire.Hello(role, member, f"t{member}", generation, fresh=generation == 0)
        until_s = time.monotonic() + LIMIT_S
        self.lines, self.pending = greet_blocking(self.socket, ring.settings.secret, hello, until_s)
        self.socket.settimeout(LIMIT_S)

    def send(self, message: wire.Message) -> None:
        self.socket.sendall(wire.encode(message))

    def receive(self, kind: type[wire.Message]) -> wire.Message:
        """Obey the coordinator's messages up to one of a kind."""
        while True:
            while self.pending:
                message = self.pending.pop(0)
                self.obey(message)
                if isinstance(message, kind):
                    return message
            data = self.socket.recv(1 << 16)
            assert data, "the connection ended"
            self.pending += self.lines.feed(data)

    def obey_all(self, *, is_done: bool = False) -> None:
        """Obey the messages so far; once the ring runs, it has no more steps to take."""
        while self.pending:
            self.obey(self.pending.pop(0))
        if is_done and wire.Resume(2) in self.received:
            self.send(wire.MemberDone(self.member, 2, 1))

    def obey(self, message: wire.Message) -> None:
        self.received.append(message)
        if isinstance(message, wire.Abort):
            self.send(wire.Stopped(self.member, message.generation, 0, awaits_layout=True))
        elif isinstance(message, wire.RingLayout):
            self.send(wire.MemberReady(self.member, message.generation, 0))
        elif isinstance(message, wire.Resume):
            self.send(wire.FirstStep(self.member, message.generation, 1))

    def beat(self) -> list[wire.Message]:
        """Send a heartbeat, and return the messages before its answer."""
        self.beats += 1
        self.send(wire.Heartbeat(self.member, 1, self.beats, 0))
        before: list[wire.Message] = []
        while wire.LeaseRenewal(self.beats) not in before:
            data = self.socket.recv(1 << 16)
            assert data, "the connection ended"
            before += self.lines.feed(data)
        self.pending += before
        return [it for it in before if not isinstance(it, wire.LeaseRenewal)]


@dataclass
class Process:
    """A coordinator in its own process."""

    folder: Path
    settings: RingSettings
    pid: int
    host: str = "127.0.0.1"
    members: list[Peer] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(read_state(self.folder)[1]["port"])

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def memory_mib(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) // 1024

    def run_ring(self) -> None:
        """Connect the members of the ring."""
        self.members = [Peer(self, "member", number) for number in range(self.settings.seats)]
        for member in self.members:
            member.send(wire.AwaitsLayout(member.member, 1, 0))
        self.all_receive(wire.Resume(1))

    def all_receive(self, last: wire.Message, without: Sequence[int] = ()) -> None:
        """Let members obey until each has received a message."""
        waiting = [it for it in self.members if it.member not in without]
        while any(last not in it.received for it in waiting):
            for it in waiting:
                it.beat()
                it.obey_all()
            time.sleep(0.01)

    def lose(self, number: int) -> Peer:
        """Report the end of a member's process; return its launcher."""
        launcher = Peer(self, "launcher")
        launcher.send(wire.MemberExited(number, -9))
        return launcher


def wait_for(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


@contextlib.contextmanager
def started(
    folder: Path, *before: str, linger_s: float = coordinator_server.LINGER_S, host: str = "127.0.0.1", epoch: int = 0
) -> Iterator[Process]:  # fmt: skip
    """A coordinator of a ring of three; its command may have something before it."""
    settings = make_ring_folder(folder, 3)
    begin = f"import {coordinator_server.__name__} as it; it.LINGER_S = {linger_s}; it.main()"
    command = [*before, sys.executable, "-c", begin, str(folder), host, str(epoch)]
    with (folder / "log").open("ab") as log:
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        process = processes.start(command, env=environment, stderr=log)
    ring = Process(folder, settings, process.pid, host)
    try:
        wait_for(lambda: read_state(folder)[1].get("epoch", -1) >= epoch)
        yield ring
    finally:
        process.kill()
        process.wait()
        ring.close()


def can_connect(ring: Process) -> bool:
    try:
        socket.create_connection(("127.0.0.1", ring.port), 1.0).close()
    except OSError:
        return False
    return True
