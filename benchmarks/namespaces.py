"""Nodes in network namespaces of their own, on one bridge, whose links can be cut or slowed down; Linux, as root.

A process that uses this is started in namespaces of its own, so that all ends with it:

    unshare --net --mount --pid --fork --mount-proc --kill-child python ...

It is the *manager* itself, at the address MANAGER.
"""

import ctypes
import os
import shutil
from pathlib import Path

from tests.support import processes

NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
VARIABLE = "NODE_NAMESPACE"  # of a process that is to run on a node
MANAGER = "10.78.0.1"
_NEW_NET = 0x40000000  # CLONE_NEWNET
_NOBODY = "02:00:00:00:00:99"  # what is sent to this address reaches nobody, and nobody is told


def why_not() -> str:
    """Return why there are no namespaces here, "" if there are."""
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        return "no unshare, ip or tc: apt-get install util-linux iproute2"
    add = ("ip", "link", "add", "v0", "type", "veth")
    tried = processes.run([*NAMESPACES, *add], capture_output=True, check=False)
    return f"no namespaces are allowed here: {tried.stderr.strip()}" if tried.returncode else ""


def enter() -> None:
    """Let this process run on the node that its environment names, if it names one; before it opens a socket."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return
    library = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
    if library.setns(handle, _NEW_NET):
        raise OSError(ctypes.get_errno(), f"cannot enter {name}")
    os.close(handle)


class Network:
    """Nodes 0 to n - 1 and the manager, each of which reaches all others.

    Args:
        nodes: How many.
    """

    def __init__(self, nodes: int) -> None:
        _ip("link set lo up")
        _run("mount", "-t", "tmpfs", "none", "/run")
        Path("/run/netns").mkdir()
        _ip("link add bridge type bridge")
        _ip(f"address add {MANAGER}/24 dev bridge")
        _ip("link set bridge up")
        for node in range(nodes):
            name = self.name(node)
            _ip(f"netns add {name}")
            _ip(f"link add {name} type veth peer name cable netns {name}")
            _ip(f"link set {name} master bridge up")
            _ip("link set lo up", name)
            _ip(f"address add {self.address(node)}/24 dev cable", name)
            _ip("link set cable up", name)

    @staticmethod
    def name(node: int) -> str:
        """Return the name of a node's namespace."""
        return f"n{node}"

    @staticmethod
    def address(node: int) -> str:
        """Return the address of a node."""
        return f"10.78.0.{10 + node}"

    def unplug(self, node: int) -> None:
        """Cut a node off from all others, as a pulled cable does: no connection is closed."""
        _ip(f"link set {self.name(node)} down")

    def cut(self, one: int, other: int | None = None) -> None:
        """Let nothing pass between two nodes, or between a node and the manager; nobody is told."""
        for it, far in ((one, other), (other, one)):
            _ip(f"neigh replace {self._place(far)} lladdr {_NOBODY} nud permanent dev {_device(it)}", _space(it))

    def mend(self, one: int, other: int | None = None) -> None:
        """Let everything pass again between two that were cut off from each other."""
        for it, far in ((one, other), (other, one)):
            _ip(f"neigh del {self._place(far)} dev {_device(it)}", _space(it))

    def shape(self, node: int, bytes_per_s: float) -> None:
        """Let no more bytes a second, headers among them, leave a node."""
        rate = f"rate {bytes_per_s * 8:.0f}bit burst 128kb latency 50ms"
        _run("ip", "netns", "exec", self.name(node), "tc", *f"qdisc replace dev cable root tbf {rate}".split())

    def _place(self, node: int | None) -> str:
        return MANAGER if node is None else self.address(node)


def _device(node: int | None) -> str:
    return "bridge" if node is None else "cable"


def _space(node: int | None) -> str:
    return "" if node is None else Network.name(node)


def _ip(words: str, namespace: str = "") -> None:
    _run("ip", *(("-n", namespace) if namespace else ()), *words.split())


def _run(*command: str) -> None:
    done = processes.run(command, capture_output=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
