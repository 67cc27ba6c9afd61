"""A coordinator in a process of its own, and peers that connect to it."""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longshore.ring import coordinator_server, wire
from longshore.ring.coordinator_state import STATE, RingSettings, make_ring
from longshore.ring.wire import greet_blocking
from tests.support import processes
from tests.support.processes import PYTHON_PATH

from .trial import LIMIT_S


class Peer:
    """A connection to a coordinator that does what a member does, or only says what it is told to say."""

    def __init__(self, ring: "Process", role: str, member: int = -1, generation: int = 0) -> None:
        self.member, self.beats = member, 0
        self.socket = socket.create_connection(("127.0.0.1", ring.port), LIMIT_S)
        ring.peers.append(self)
        self.said: list[wire.Message] = []
        hello = wire.Hello(role, member, f"t{member}", generation, fresh=generation == 0)
        until_s = time.monotonic() + LIMIT_S
        self.lines, self.heard = greet_blocking(self.socket, ring.settings.secret, hello, until_s)
        self.socket.settimeout(LIMIT_S)

    def say(self, message: wire.Message) -> None:
        self.socket.sendall(wire.encode(message))

    def hear(self, kind: type[wire.Message]) -> wire.Message:
        """Do what the coordinator says until it has said something of a kind."""
        while True:
            while self.heard:
                message = self.heard.pop(0)
                self.obey(message)
                if isinstance(message, kind):
                    return message
            data = self.socket.recv(1 << 16)
            assert data, "the connection ended"
            self.heard += self.lines.feed(data)

    def obey_all(self, *, says_done: bool = False) -> None:
        """Do what was said so far; once it may run, it has no more steps to take."""
        while self.heard:
            self.obey(self.heard.pop(0))
        if says_done and wire.Resume(2) in self.said:
            self.say(wire.MemberDone(self.member, 2, 1))

    def obey(self, message: wire.Message) -> None:
        self.said.append(message)
        if isinstance(message, wire.Abort):
            self.say(wire.Stopped(self.member, message.generation, 0, awaits_layout=True))
        elif isinstance(message, wire.RingLayout):
            self.say(wire.MemberReady(self.member, message.generation, 0))
        elif isinstance(message, wire.Resume):
            self.say(wire.FirstStep(self.member, message.generation, 1))

    def beat(self) -> list[wire.Message]:
        """Beat, and return what was said before the answer."""
        self.beats += 1
        self.say(wire.Heartbeat(self.member, 1, self.beats, 0))
        before: list[wire.Message] = []
        while wire.LeaseRenewal(self.beats) not in before:
            data = self.socket.recv(1 << 16)
            assert data, "the connection ended"
            before += self.lines.feed(data)
        self.heard += before
        return [it for it in before if not isinstance(it, wire.LeaseRenewal)]


@dataclass
class Process:
    """A coordinator that runs by itself."""

    folder: Path
    settings: RingSettings
    pid: int
    members: list[Peer] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(json.loads((self.folder / STATE).read_bytes())["port"])

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
        """Let the members of the ring come."""
        self.members = [Peer(self, "member", number) for number in range(self.settings.seats)]
        for member in self.members:
            member.say(wire.AwaitsLayout(member.member, 1, 0))
        self.all_hear(wire.Resume(1))

    def all_hear(self, last: wire.Message, without: Sequence[int] = ()) -> None:
        """Let members do what they are told until each has heard something."""
        waiting = [it for it in self.members if it.member not in without]
        while any(last not in it.said for it in waiting):
            for it in waiting:
                it.beat()
                it.obey_all()
            time.sleep(0.01)

    def lose(self, number: int) -> Peer:
        """Let the process of a member end; return who launched it."""
        launcher = Peer(self, "launcher")
        launcher.say(wire.MemberExited(number, -9))
        return launcher


def wait_for(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


@contextlib.contextmanager
def started(folder: Path, *before: str, linger_s: float = coordinator_server.LINGER_S) -> Iterator[Process]:
    """A coordinator of a ring of three; its command may have something before it."""
    settings = make_ring(folder, 3)
    begin = f"import {coordinator_server.__name__} as it; it.LINGER_S = {linger_s}; it.main()"
    command = [*before, sys.executable, "-c", begin, str(folder)]
    with (folder / "log").open("ab") as log:
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        process = processes.start(command, env=environment, stderr=log)
    ring = Process(folder, settings, process.pid)
    try:
        wait_for((folder / STATE).exists)
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
