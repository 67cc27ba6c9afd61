"""A scheduler and two nodes in network namespaces of their own, each linked to each: run by test_nodes_apart.py.

    unshare --net --mount --pid --fork --mount-proc --kill-child python -m tests.scheduler.apart_nodes FOLDER

First the scheduler's end of its link to a node is cut, then the node's ends of both its links, as if it had no power.
"""

import os
import sys
from pathlib import Path

import httpx

from benchmarks.namespaces import NAMESPACES
from tests.scheduler.cut_off_node import in_other_net, run, tell, until
from tests.scheduler.serving_apart import serve_apart
from tests.support import processes

NODES = ("rack0-node1", "rack0-node2")
HOME, PORT = "10.77.0.1", 8765  # of the scheduler: on none of the links, so that none takes it away
SETTINGS = f"{{folder: served, host: {HOME}, as_root: true, poll_s: 1.0}}\n"


def ip(words: str) -> None:
    run("ip", *words.split())


def inner(number: int) -> None:
    """Be a node: its links, and its agent; what comes over the pipe says which of its links go up and down."""
    other, own, between = 3 - number, f"a{number}", f"c{number}"
    sys.stdin.readline()  # the links are there
    for link in ("lo", own, between):
        ip(f"link set {link} up")
    ip(f"address add 10.77.{number}.2/24 dev {own}")
    ip(f"address add 10.77.12.{number}/24 dev {between}")
    ways = f"route add {HOME}/32 via 10.77.{number}.1", f"route add 10.77.{other}.2/32 via 10.77.12.{other}"
    for way in ways:
        ip(way)
    line = ["node", "agent", "--node", NODES[number - 1], "--every", "500ms", "--url", f"http://{HOME}:{PORT}"]
    agent = processes.start([sys.executable, "-m", "longshore", *line])
    for words in sys.stdin:
        ip(words.strip())
        if words.endswith("up\n"):
            for way in ways:
                processes.run(["ip", *way.split()], capture_output=True, check=False)
    agent.kill()


class Outer:
    """The scheduler's part.

    Args:
        folder: Of all files.
    """

    def __init__(self, folder: Path) -> None:
        for words in (
            "link set lo up", f"address add {HOME}/32 dev lo", "link add b1 type veth peer name a1",
            "link add b2 type veth peer name a2", "link add c1 type veth peer name c2",
            "link set b1 up", "link set b2 up", "address add 10.77.1.1/24 dev b1", "address add 10.77.2.1/24 dev b2",
        ):  # fmt: skip
            ip(words)
        log = (folder / "log").open("w")
        self.served, self.http, secret = serve_apart(folder, SETTINGS, f"http://{HOME}:{PORT}", log)
        self.nodes = {}
        for number in (1, 2):
            command = [*NAMESPACES, sys.executable, "-m", "tests.scheduler.apart_nodes", "--inner", str(number)]
            environment = {**os.environ, "LONGSHORE_TOKEN": secret}
            self.nodes[number] = processes.start(
                command, env=environment, stdin=processes.PIPE, stdout=log, stderr=log, text=True
            )

    def say(self, number: int, words: str) -> None:
        pipe = self.nodes[number].stdin
        assert pipe is not None
        pipe.write(f"{words}\n")
        pipe.flush()

    def page(self, number: int) -> dict[str, str]:
        """Return how a node stands, nothing before the scheduler answers."""
        try:
            found = self.http.get("/v1/nodes").json()
        except httpx.HTTPError:
            return {"state": ""}
        return next(it for it in found if it["name"] == NODES[number - 1])

    def becomes(self, number: int, state: str, words: str) -> str:
        """Wait until a node is in a state for reasons that have some words, and return them."""
        found = {"state": "", "evidence": ""}

        def is_so() -> bool:
            found.update(self.page(number))
            return found["state"] == state and words in found["evidence"]

        until(is_so, f"{state} {words}")
        return found["evidence"]

    def play(self) -> dict[str, str]:
        """Cut and mend links, and return what was said of the first node after each."""
        for number, node in self.nodes.items():
            until(lambda node=node: in_other_net(node.pid), "the inner namespace")  # type: ignore[misc]
            for link in (f"a{number}", f"c{number}"):
                ip(f"link set {link} netns {node.pid}")
        for number in self.nodes:
            self.say(number, "")
        for number in self.nodes:
            until(lambda number=number: len(self.page(number).get("witnesses", ())) == 2, "the first look")  # type: ignore[misc]
        reported = {}
        ip("link set b1 down")
        reported["link"] = self.becomes(1, "unreachable", "reaches it")
        ip("link set b1 up")
        self.becomes(1, "alive", "")
        for link in ("a1", "c1"):
            self.say(1, f"link set {link} down")
        reported["power"] = self.becomes(1, "dead", "")
        for link in ("a1", "c1"):
            self.say(1, f"link set {link} up")
        reported["back"] = self.becomes(1, "alive", "")
        reported["other"] = self.page(2)["state"]
        for node in self.nodes.values():
            assert node.stdin
            node.stdin.close()
            node.wait(30)
        self.served.terminate()
        self.served.wait(30)
        return reported


if __name__ == "__main__":
    if sys.argv[1] == "--inner":
        inner(int(sys.argv[2]))
    else:
        tell(Outer(Path(sys.argv[1])).play())
