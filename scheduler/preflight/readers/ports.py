"""Network ports as /sys/class/infiniband tells of them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys/class/infiniband")
FATAL = ("link_downed", "link_error_recovery")  # counters of which none may rise
RATED = ("symbol_error", "port_rcv_errors")  # counters that may rise slowly


@dataclass(frozen=True, slots=True)
class Port:
    """A port as it is at one moment."""

    name: str  # such as mlx5_0/1
    state: str  # such as ACTIVE; "" where it is not told
    physical: str  # such as LinkUp
    rate: str  # such as 400 Gb/sec (4X NDR)
    counters: Mapping[str, int]  # by name; those that cannot be read are left out


def read_ports(root: Path) -> Sequence[Port]:
    """Return all ports, in the order of their names.

    Args:
        root: Such as SYSFS. A folder that is not there has none.
    """
    folders = sorted(root.glob("*/ports/*"), key=lambda path: (path.parent.parent.name, path.name))
    return [_port(path) for path in folders if path.is_dir()]


def _port(path: Path) -> Port:
    counters = {}
    for name in (*FATAL, *RATED):
        with suppress(OSError, ValueError):
            counters[name] = int((path / "counters" / name).read_text())
    return Port(
        f"{path.parent.parent.name}/{path.name}",
        _word(path / "state"), _word(path / "phys_state"), _line(path / "rate"), counters,
    )  # fmt: skip


def _line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[:200]
    except OSError:
        return ""


def _word(path: Path) -> str:
    """Return the word of a line such as `4: ACTIVE`."""
    return _line(path).rpartition(":")[2].strip()
