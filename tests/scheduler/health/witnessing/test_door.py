"""Knocking at real doors: of agents that live, stand still or are gone, and of those who are none."""

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from longshore.scheduler.health.liveness import Door, Knock, Sight, look_at
from tests.support import processes
from tests.support.processes import PYTHON_PATH

LOCAL = "127.0.0.1"
PYTHON = {**os.environ, "PYTHONPATH": PYTHON_PATH}
AGENT = """
import sys
from longshore.scheduler.health.liveness import Door
print(Door("n1", "b1").port, flush=True)
sys.stdin.read()
"""


def at(port: int, node: str = "n1", within_s: float = 30.0) -> Sight:
    (found,) = look_at([Knock(node, LOCAL, port)], within_s)
    return found


@contextlib.contextmanager
def process() -> Iterator[tuple["processes.Process[str]", int]]:
    """A process with a door of node n1."""
    pipe = processes.PIPE
    with processes.start([sys.executable, "-c", AGENT], env=PYTHON, stdin=pipe, stdout=pipe, text=True) as made:
        assert made.stdout is not None
        try:
            yield made, int(made.stdout.readline())
        finally:
            made.kill()


def test_a_door_says_whose_it_is_over_both_protocols() -> None:
    door = Door("n1", "b1")
    assert at(door.port) is Sight.ANSWERED
    if socket.has_dualstack_ipv6():
        assert look_at([Knock("n1", "::1", door.port), Knock("n1", "::ffff:127.0.0.1", door.port)], 30.0) == [
            Sight.ANSWERED, Sight.ANSWERED
        ]  # fmt: skip
    door.close()
    assert at(door.port) is Sight.REFUSED


@pytest.mark.full
def test_a_process_that_stands_still_takes_connections_and_one_that_was_killed_takes_none() -> None:
    with process() as (it, port):
        assert at(port) is Sight.ANSWERED
        os.kill(it.pid, signal.SIGSTOP)
        os.waitpid(it.pid, os.WUNTRACED)  # its threads stop a little later, and may answer until then
        for _ in range(2):
            assert at(port, within_s=2.0) is Sight.ACCEPTED
        os.kill(it.pid, signal.SIGCONT)
        assert at(port) is Sight.ANSWERED
        it.kill()
        it.wait()
        assert at(port) is Sight.REFUSED


def says(what: bytes) -> Callable[[socket.socket], object]:
    return lambda connection: connection.sendall(what)


STRANGERS: dict[str, tuple[Callable[[socket.socket], object], Sight]] = {
    "another node": (says(b'{"node": "n2", "boot_id": ""}\n'), Sight.OTHER),
    "no node": (says(b"{}\n"), Sight.OTHER), "no JSON": (says(b"SSH-2.0-OpenSSH_9.2\r\n"), Sight.OTHER),
    "no object": (says(b'["n1"]\n'), Sight.OTHER), "deep": (says(b"[" * 1000 + b"\n"), Sight.OTHER),
    "endless": (says(b"x" * (1 << 20)), Sight.OTHER), "its end": (lambda it: it.shutdown(socket.SHUT_WR), Sight.OTHER),
    "a node of another type": (says(b'{"node": 1}\n'), Sight.OTHER), "nothing": (lambda _: None, Sight.ACCEPTED),
    "half a line": (says(b'{"node": "n1"'), Sight.ACCEPTED),
    "the right one": (says(b'{"node": "n1"}\n'), Sight.ANSWERED),
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", STRANGERS)
def test_whoever_is_there_instead_is_not_taken_for_the_agent(kind: str) -> None:
    answer, sight = STRANGERS[kind]
    with socket.create_server((LOCAL, 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as connection, contextlib.suppress(OSError):
                answer(connection)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        assert at(listening.getsockname()[1], within_s=2.0 if sight is Sight.ACCEPTED else 30.0) is sight
        thread.join()


def test_a_port_that_lets_nobody_in_is_a_time_out() -> None:
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((LOCAL, 0))
        listening.listen(0)
        waiting = [stack.enter_context(socket.socket()) for _ in range(4)]
        for it in waiting:  # more than may wait there
            it.setblocking(False)  # noqa: FBT003
            it.connect_ex(listening.getsockname())
        assert at(listening.getsockname()[1], within_s=0.3) is Sight.TIMED_OUT


@pytest.mark.parametrize("address", ["", "testclient", "localhost", "256.0.0.1", "10.0.0.0/8", "\x00", "1" * 300])
def test_what_is_no_address_is_not_looked_up(address: str) -> None:
    assert look_at([Knock("n1", address, 80)]) == [Sight.UNABLE]


def test_without_a_network_there_is_no_route() -> None:
    alone = ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or processes.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces are allowed here")
    script = (
        "from longshore.scheduler.health.liveness import Knock, look_at; "
        "print(*look_at([Knock('n1', '10.77.0.2', 80)]))"
    )
    told = processes.run([*alone, sys.executable, "-c", script], env=PYTHON, capture_output=True, check=True)
    assert told.stdout.strip() == "no route"


def test_many_doors_are_knocked_at_at_once_and_each_answer_is_at_its_place() -> None:
    doors = [Door(f"n{number}", "") for number in range(150)]
    knocks = [Knock(f"n{number}", LOCAL, door.port) for number, door in enumerate(doors)]
    doors[7].close()
    found = look_at(knocks, 30.0)
    assert [number for number, sight in enumerate(found) if sight is not Sight.ANSWERED] == [7]
    for door in doors:
        door.close()


def test_strangers_that_say_much_or_stay_keep_nobody_out() -> None:
    door = Door("n1", "b1")
    with contextlib.ExitStack() as stack:
        for number in range(300):
            it = stack.enter_context(socket.create_connection((LOCAL, door.port)))
            if number % 3 == 0:
                with contextlib.suppress(OSError):
                    it.send(b"x" * 100_000, socket.MSG_DONTWAIT)
        assert at(door.port) is Sight.ANSWERED
    door.close()


def test_a_port_that_is_taken_is_told() -> None:
    door = Door("n1", "b1")
    with pytest.raises(OSError, match="in use"):
        Door("n2", "b1", door.port)
    door.close()
