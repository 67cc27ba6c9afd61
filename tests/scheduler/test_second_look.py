"""Real agents that are killed, stopped or shut: what the scheduler and the agents of other nodes find there."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from longshore.cluster.files.processes import free_port
from longshore.scheduler.health.evidence import AgentPort
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.nodes import CHANGE
from tests.scheduler.served import LONGSHORE, PATIENCE_S, WARM, Served, until
from tests.support import processes
from tests.support.warm import Forked

A, B, C = "rack0-node0", "rack0-node1", "rack0-node2"
STORE = ".longshore/longshore.db"
SETTINGS = "poll_s: 0.3\n"  # so that a node is suspect after a second, and down after two


class Watched(Served):
    """A scheduler of four nodes, and agents of some of them."""

    def __init__(self, folder: Path) -> None:
        (folder / "c.yaml").write_text(SETTINGS)
        super().__init__(folder, "--config", "c.yaml")
        self.agents: dict[str, Forked] = {}
        self.start()

    def agent(self, node: str, *options: str) -> None:
        """Start the agent of a node."""
        line = [*LONGSHORE, "node", "agent", "--node", node, "--every", "100ms", "--url", self.url, *options]
        self.agents[node] = WARM.Popen(line, cwd=self.folder, stderr=processes.DEVNULL)

    def end_agents(self) -> None:
        for it in self.agents.values():
            it.kill()
            it.wait()
        self.agents.clear()

    def page(self, node: str) -> dict[str, Any]:
        return next(it for it in self.ask("/v1/nodes") if it["name"] == node)

    def becomes(self, node: str, state: str, *words: str) -> dict[str, Any]:
        """Wait until a node is in a state for reasons that have some words; return its page."""

        def is_so() -> bool:
            page = self.page(node)
            return page["state"] == state and all(it in page["evidence"] for it in words)

        try:
            until(is_so)
        except AssertionError as error:
            raise AssertionError(self.page(node)) from error
        return self.page(node)

    def start_agents(self, *nodes: str) -> None:
        """Start agents, and wait until all that there are were let in at each other's agent_ports."""
        for node in nodes:
            self.agent(node)
        most = min(len(self.agents), 3)  # the scheduler and two others
        until(lambda: all(len(self.page(node)["witnesses"]) == most for node in self.agents))

    def send(self, node: str, number: signal.Signals) -> None:
        self.agents[node].send_signal(number)
        if number is signal.SIGKILL:
            self.agents[node].wait()

    def events(self, node: str) -> list[tuple[str, str]]:
        """Return word and cause of all events about a node."""
        store = open_store(f"sqlite:///{self.folder / STORE}")
        with closing(store), store.read() as tx:
            found = [it for it in events_after(tx, 0, 1 << 40) if it.kind == CHANGE]
        return [(it.now, it.cause) for it in found if (it.data or {}).get("node") == node]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    made = Watched(tmp_path_factory.mktemp("served"))
    yield made
    made.end()


@pytest.fixture
def watched(served: Watched) -> Iterator[Watched]:
    yield served
    served.end_agents()
    for node in (A, B, C):
        served.tell("POST", f"/v1/nodes/{node}/resume")
    until(lambda: all(it["state"] == "alive" for it in served.ask("/v1/nodes")))


@pytest.mark.full
def test_an_agent_that_was_killed_is_dead_once_all_are_refused_and_alive_once_it_is_back(
    watched: Watched,
) -> None:
    watched.start_agents(A, B, C)
    watched.send(A, signal.SIGKILL)
    page = watched.becomes(A, "dead", "fast: ", "the scheduler is refused, rack0-node", " is refused")
    assert (page["liveness"], page["verdict"]) == ("down", "fast")
    lines = watched.call("node", "list").stdout.splitlines()
    assert "dead: fast: " in next(line for line in lines if line.startswith(A))
    assert (
        "dead: the scheduler is refused"
        in httpx.get(watched.url, headers=watched.headers, timeout=PATIENCE_S, trust_env=False).text
    )
    watched.start_agents(A)
    watched.becomes(A, "alive", "last answer")
    told = watched.events(A)[-3:]
    assert [now for now, _ in told] == ["down", "dead", "up"]
    assert told[1][1].startswith(f"{A} is dead (fast): the scheduler is refused, rack0-node")
    assert told[2][1] == f"{A} is up: it answers again, and was not restarted meanwhile"
    assert (watched.page(A)["verdict"], watched.page(B)["state"]) == ("", "alive")


@pytest.mark.full
def test_an_agent_that_stands_still_is_not_dead(watched: Watched) -> None:
    watched.start_agents(A, B, C)
    watched.send(A, signal.SIGSTOP)
    page = watched.becomes(
        A, "unreachable", "is connected and gets nothing", "so its machine lives, and its agent hangs"
    )
    assert page["verdict"] == "stuck"
    watched.send(A, signal.SIGCONT)
    watched.becomes(A, "alive")
    assert "dead" not in [now for now, _ in watched.events(A)[-3:]]


@pytest.mark.full
def test_an_agent_that_is_killed_after_it_stood_still_is_dead(watched: Watched) -> None:
    watched.start_agents(A, B, C)
    watched.send(A, signal.SIGSTOP)
    watched.becomes(A, "unreachable", "is connected and gets nothing")
    watched.send(A, signal.SIGKILL)
    watched.becomes(A, "dead", "fast: ")


@pytest.mark.full
def test_an_agent_all_alone_is_dead_by_the_word_of_the_scheduler(watched: Watched) -> None:
    watched.start_agents(A)
    watched.send(A, signal.SIGKILL)
    watched.becomes(A, "dead", "fast: ", "the scheduler is refused, no other agent can probe it")


@pytest.mark.full
def test_who_takes_the_port_of_an_agent_that_died_is_not_taken_for_it(watched: Watched) -> None:
    watched.start_agents(B, C)
    port = free_port()
    watched.agent(A, "--port", str(port))
    until(lambda: len(watched.page(A)["witnesses"]) == 3)
    watched.send(A, signal.SIGKILL)
    stranger = AgentPort("another node", "", port)
    page = watched.becomes(A, "unreachable", "finds another program at its port")
    assert page["verdict"] == ""
    stranger.close()
    watched.becomes(A, "dead", "fast: ")


@pytest.mark.full
def test_an_agent_without_a_port_is_unreachable_when_it_is_gone(watched: Watched) -> None:
    watched.start_agents(B, C)
    watched.agent(A, "--port", "-1")
    until(lambda: watched.page(A)["reported"] is not None)
    time.sleep(2.0)  # some looks of the scheduler: of an agent that it never saw it misses nothing
    watched.send(A, signal.SIGKILL)
    page = watched.becomes(A, "unreachable", "answers missed in a row")
    assert (page["verdict"], page["witnesses"]) == ("", [])


@pytest.mark.full
def test_of_many_that_die_at_once_none_is_declared_and_the_words_say_so(watched: Watched) -> None:
    watched.start_agents(A, B, C)
    before = {node: len(watched.events(node)) for node in (A, B)}
    for node in (A, B):
        watched.send(node, signal.SIGKILL)
    for node in (A, B):
        watched.becomes(node, "suspect", "is refused", "many nodes fell silent together, so none of them is declared")
        assert [now for now, _ in watched.events(node)[before[node] :]] == ["suspect"]


@pytest.mark.full
def test_a_port_that_is_taken_is_one_line(watched: Watched) -> None:
    agent_port = AgentPort("x", "")
    done = watched.call("node", "agent", "--node", A, "--port", str(agent_port.port), check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"longshore: the agent cannot listen at port {agent_port.port}: ")
    agent_port.close()
