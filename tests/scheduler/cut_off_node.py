"""A scheduler and a node in network namespaces of their own, whose link is cut: run by test_cut_off_node.py.

    unshare --net --mount --pid --fork --mount-proc --kill-child python -m tests.scheduler.cut_off_node FOLDER MODE

Two parts: the outer one has the scheduler, the inner one (`--inner`) the agent of a node and what stands for a job.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import httpx

from benchmarks.namespaces import NAMESPACES
from tests.scheduler.serving_apart import serve_apart
from tests.scheduler.set_clock import SetClock
from tests.support import processes

NODE, ATTEMPT = "rack0-node1", "ls-01m8a4f41mybhyatw0vkdn9dh0-1"
HERE, THERE, PORT = "10.77.0.1", "10.77.0.2", 8765
PATIENCE_S = 120.0
SETS_BY_S = {"forward": 3600, "back": -3600}  # the node's clock
LEASES_S = 13.0  # longer than one lease lasts
SETTINGS = f"{{folder: served, host: {HERE}, as_root: true, fencing: leases, poll_s: 1.5}}\n"


def run(*command: str) -> None:
    processes.run(command, check=True, capture_output=True)


def until(is_so: Callable[[], object], what: str) -> float:
    """Wait for something, and return when it came true by a clock that all namespaces share."""
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up:
            raise TimeoutError(what)
        time.sleep(0.05)
    return time.monotonic()


def tell(told: Mapping[str, object]) -> None:
    """Tell who waits at the other end of the pipe."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def inner(mode: str, folder: Path) -> None:
    """Be the node: a process that stands for a job, its child, and the agent."""
    clock = SetClock(folder) if mode in SETS_BY_S else None
    run("mount", "-t", "tmpfs", "none", "/run")
    sys.stdin.readline()  # the link is there
    for command in (("lo", "up"), ("v1", "up")):
        run("ip", "link", "set", *command)
    run("ip", "address", "add", f"{THERE}/24", "dev", "v1")
    environment = {**os.environ, "LONGSHORE_ATTEMPT": ATTEMPT}
    job = processes.start(["sh", "-c", "env -i sleep 1000 & wait"], env=environment)
    until(lambda: _children(job.pid), "the job's child")
    (child,) = _children(job.pid)
    agent = processes.start(
        [
            sys.executable,
            "-m",
            "longshore",
            "node",
            "agent",
            "--node",
            NODE,
            "--url",
            f"http://{HERE}:{PORT}",
            "--fence",
        ],
        env=os.environ | ({} if clock is None else clock.environment),
    )
    sys.stdin.readline()  # all is well
    if clock is not None:
        assert "set_clock.so" in Path(f"/proc/{agent.pid}/maps").read_text()
        clock.set(SETS_BY_S[mode])
    sys.stdin.readline()  # it is cut
    tell({"lived": float(job.poll() is None and _lives(child))})
    if mode == "agent":
        agent.kill()
    job.wait()
    until(lambda: not _lives(child), "the end of the job's child")
    tell({"killed_s": time.monotonic()})
    sys.stdin.readline()  # all is over
    agent.kill()


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(it) for it in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Outer:
    """The scheduler's part.

    Args:
        folder: Of all files.
        mode: `link` to cut the link, `agent` to kill the agent, `forward` and `back` to set the node's clock and then
            cut the link.
    """

    def __init__(self, folder: Path, mode: str) -> None:
        self.mode = mode
        for words in ("set lo up", "add v0 type veth peer name v1", "set v0 up"):
            run("ip", "link", *words.split())
        run("ip", "address", "add", f"{HERE}/24", "dev", "v0")
        log = (folder / "log").open("w")
        self.served, self.http, secret = serve_apart(folder, SETTINGS, f"http://{HERE}:{PORT}", log)
        command = [*NAMESPACES, sys.executable, "-m", "tests.scheduler.cut_off_node", "--inner", mode, str(folder)]
        environment = {**os.environ, "LONGSHORE_TOKEN": secret}
        pipe = processes.PIPE
        self.node = processes.start(command, env=environment, stdin=pipe, stdout=pipe, stderr=log, text=True)

    def state(self) -> str:
        """Return the state of the node, "" before its agent has reported."""
        with suppress(httpx.HTTPError):
            for it in self.http.get("/v1/nodes").json():
                if it["name"] == NODE:
                    return str(it["state"] if it["boot_id"] else "")
        return ""

    def go_on(self) -> None:
        """Let the node's part go on."""
        assert self.node.stdin
        self.node.stdin.write("\n")
        self.node.stdin.flush()

    def play(self) -> dict[str, float]:
        """Cut the node off once all is well, and return what happened how long after that."""
        until(lambda: in_other_net(self.node.pid), "the inner namespace")
        run("ip", "link", "set", "v1", "netns", str(self.node.pid))
        self.go_on()
        until(lambda: self.state() == "alive", "the first report")
        self.go_on()
        time.sleep(LEASES_S if self.mode in SETS_BY_S else 3.0)  # some leases are renewed
        alive = float(self.state() == "alive")
        if self.mode != "agent":
            run("ip", "link", "set", "v0", "down")
        cut_s = time.monotonic()
        self.go_on()
        assert self.node.stdout
        lived = float(json.loads(self.node.stdout.readline())["lived"])
        fenced_s = until(lambda: self.state() == "fenced", "the fencing") - cut_s
        killed_s = float(json.loads(self.node.stdout.readline())["killed_s"]) - cut_s
        back_s = 0.0
        if self.mode != "agent":
            run("ip", "link", "set", "v0", "up")
            back_s = until(lambda: self.state() == "alive", "the node's return") - cut_s
        self.go_on()
        self.node.wait(30)
        self.served.terminate()
        self.served.wait(30)
        return {"killed_s": killed_s, "fenced_s": fenced_s, "back_s": back_s, "lived": lived, "alive": alive}


def in_other_net(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


if __name__ == "__main__":
    if sys.argv[1] == "--inner":
        inner(sys.argv[2], Path(sys.argv[3]))
    else:
        tell(Outer(Path(sys.argv[1]), sys.argv[2]).play())
