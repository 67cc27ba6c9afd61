"""Knocking at real agent_ports: of agents that live, stand still or are gone, and of those who are none."""

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from longshore.scheduler.health.evidence import AgentPort, PortProbe, PortState, probe_ports
from tests.support import processes
from tests.support.processes import PYTHON_PATH

LOCAL = "127.0.0.1"
PYTHON = {**os.environ, "PYTHONPATH": PYTHON_PATH}
AGENT = """
import sys
from longshore.scheduler.health.evidence import AgentPort
print(AgentPort("n1", "b1").port, flush=True)
sys.stdin.read()
"""


def at(port: int, node: str = "n1", within_s: float = 30.0) -> PortState:
    (found,) = probe_ports([PortProbe(node, LOCAL, port)], within_s)
    return found


@contextlib.contextmanager
def process() -> Iterator[tuple["processes.Process[str]", int]]:
    """A process with the port of an agent of node n1."""
    pipe = processes.PIPE
    with processes.start([sys.executable, "-c", AGENT], env=PYTHON, stdin=pipe, stdout=pipe, text=True) as made:
        assert made.stdout is not None
        try:
            yield made, int(made.stdout.readline())
        finally:
            made.kill()


def test_an_agents_port_names_its_node_over_both_protocols() -> None:
    agent_port = AgentPort("n1", "b1")
    assert at(agent_port.port) is PortState.ANSWERED
    if socket.has_dualstack_ipv6():
        probes = [PortProbe("n1", address, agent_port.port) for address in ("::1", "::ffff:127.0.0.1")]
        assert probe_ports(probes, 30.0) == [PortState.ANSWERED, PortState.ANSWERED]
    agent_port.close()
    assert at(agent_port.port) is PortState.REFUSED


@pytest.mark.full
def test_a_process_that_stands_still_takes_connections_and_one_that_was_killed_takes_none() -> None:
    with process() as (it, port):
        assert at(port) is PortState.ANSWERED
        os.kill(it.pid, signal.SIGSTOP)
        os.waitpid(it.pid, os.WUNTRACED)  # its threads stop a little later, and may answer until then
        for _ in range(2):
            assert at(port, within_s=2.0) is PortState.ACCEPTED
        os.kill(it.pid, signal.SIGCONT)
        assert at(port) is PortState.ANSWERED
        it.kill()
        it.wait()
        assert at(port) is PortState.REFUSED


def says(what: bytes) -> Callable[[socket.socket], object]:
    return lambda connection: connection.sendall(what)


OTHER_PROGRAMS: dict[str, tuple[Callable[[socket.socket], object], PortState]] = {
    "another node": (says(b'{"node": "n2", "boot_id": ""}\n'), PortState.OTHER),
    "no node": (says(b"{}\n"), PortState.OTHER), "no JSON": (says(b"SSH-2.0-OpenSSH_9.2\r\n"), PortState.OTHER),
    "no object": (says(b'["n1"]\n'), PortState.OTHER), "deep": (says(b"[" * 1000 + b"\n"), PortState.OTHER),
    "endless": (says(b"x" * (1 << 20)), PortState.OTHER),
    "its end": (lambda it: it.shutdown(socket.SHUT_WR), PortState.OTHER),
    "a node of another type": (says(b'{"node": 1}\n'), PortState.OTHER),
    "nothing": (lambda _: None, PortState.ACCEPTED),
    "half a line": (says(b'{"node": "n1"'), PortState.ACCEPTED),
    "the right one": (says(b'{"node": "n1"}\n'), PortState.ANSWERED),
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", OTHER_PROGRAMS)
def test_another_program_at_the_port_is_not_taken_for_the_agent(kind: str) -> None:
    answer, result = OTHER_PROGRAMS[kind]
    with socket.create_server((LOCAL, 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as connection, contextlib.suppress(OSError):
                answer(connection)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        assert at(listening.getsockname()[1], within_s=2.0 if result is PortState.ACCEPTED else 30.0) is result
        thread.join()


def test_a_port_that_accepts_no_connection_is_a_time_out() -> None:
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((LOCAL, 0))
        listening.listen(0)
        waiting = [stack.enter_context(socket.socket()) for _ in range(4)]
        for it in waiting:  # more than may wait there
            it.setblocking(False)  # noqa: FBT003
            it.connect_ex(listening.getsockname())
        assert at(listening.getsockname()[1], within_s=0.3) is PortState.TIMED_OUT


@pytest.mark.parametrize("address", ["", "testclient", "localhost", "256.0.0.1", "10.0.0.0/8", "\x00", "1" * 300])
def test_what_is_no_address_is_not_looked_up(address: str) -> None:
    assert probe_ports([PortProbe("n1", address, 80)]) == [PortState.UNABLE]


def test_without_a_network_there_is_no_route() -> None:
    alone = ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or processes.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces are allowed here")
    script = (
        "from longshore.scheduler.health.evidence import PortProbe, probe_ports; "
        "print(*probe_ports([PortProbe('n1', '10.77.0.2', 80)]))"
    )
    reported = processes.run([*alone, sys.executable, "-c", script], env=PYTHON, capture_output=True, check=True)
    assert reported.stdout.strip() == "no route"


def test_many_ports_are_probed_at_once_and_each_result_is_at_its_place() -> None:
    agent_ports = [AgentPort(f"n{number}", "") for number in range(150)]
    probes = [PortProbe(f"n{number}", LOCAL, agent_port.port) for number, agent_port in enumerate(agent_ports)]
    agent_ports[7].close()
    found = probe_ports(probes, 30.0)
    assert [number for number, result in enumerate(found) if result is not PortState.ANSWERED] == [7]
    for agent_port in agent_ports:
        agent_port.close()


def test_connections_that_send_much_or_stay_block_no_other() -> None:
    agent_port = AgentPort("n1", "b1")
    with contextlib.ExitStack() as stack:
        for number in range(300):
            it = stack.enter_context(socket.create_connection((LOCAL, agent_port.port)))
            if number % 3 == 0:
                with contextlib.suppress(OSError):
                    it.send(b"x" * 100_000, socket.MSG_DONTWAIT)
        assert at(agent_port.port) is PortState.ANSWERED
    agent_port.close()


def test_a_port_in_use_is_an_error() -> None:
    agent_port = AgentPort("n1", "b1")
    with pytest.raises(OSError, match="in use"):
        AgentPort("n2", "b1", agent_port.port)
    agent_port.close()
