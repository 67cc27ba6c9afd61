"""What installed packages register by entry points: policies, trace formats, rewards and others (docs/extending.md).

Names are known without an import. A module is imported when its name is used.
"""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from .errors import PluginError
from .input_problems import name_advice
from .signals import SigtermExit

# The last part of each entry-point group `longshore.SEAM`, and what one of its entries is called.
SEAMS = {
    "policies": "policy", "networks": "network", "traces": "trace format",
    "rewards": "reward", "backends": "backend", "checks": "preflight check",
}  # fmt: skip

KindT = TypeVar("KindT")


def registered(seam: str) -> Mapping[str, EntryPoint]:
    """Return what all installed packages register for a seam, by name, in alphabetical order.

    Args:
        seam: A key of SEAMS.
    """
    return {name: points[0] for name, points in _entry_points_by_name(seam, tuple(sys.path)).items()}


def is_ours(point: EntryPoint) -> bool:
    """Return whether an entry point is Longshore's own."""
    return point.module.partition(".")[0] == "longshore"


def is_registered(seam: str, name: str) -> bool:
    """Return whether any package registers a name for a seam, in less than a microsecond.

    Args:
        seam: A key of SEAMS.
        name: The name.
    """
    return name in _entry_points_by_name(seam, tuple(sys.path))


def load(seam: str, name: str) -> Any:
    """Return what is registered for a seam under a name, imported.

    Args:
        seam: A key of SEAMS.
        name: Its name.

    Raises:
        PluginError: If nothing has that name, two packages register it for different objects, or the import fails.
    """
    known = _entry_points_by_name(seam, tuple(sys.path))
    if name not in known:
        raise PluginError(f"there is no {SEAMS[seam]} {name!r}; {name_advice(name, known)}")
    first, *others = known[name]
    if others:
        raise PluginError(f"{SEAMS[seam]} {name!r} is both {first.value} and {others[0].value}; uninstall one")
    try:
        return first.load()
    except SigtermExit:
        raise
    except (Exception, SystemExit) as error:  # a third party's module may fail in any way
        raise PluginError(f"{SEAMS[seam]} {name!r} ({first.value}) cannot be imported: {error}") from error


def load_as(seam: str, name: str, kind: type[KindT]) -> KindT:
    """Return what is registered for a seam under a name, imported, if it is what the seam takes.

    Raises:
        PluginError: As `load`, or if it is something else.
    """
    found: object = load(seam, name)
    if not isinstance(found, kind):
        where = f"{SEAMS[seam]} {name!r} ({registered(seam)[name].value})"
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise PluginError(f"{where} is {type(found).__name__}, not {article} {kind.__name__}")
    return found


@cache
def _entry_points_by_name(seam: str, path: tuple[str, ...]) -> Mapping[str, list[EntryPoint]]:
    """Return the different objects that packages register under each name; `path` is where Python finds packages.

    Ours keep their names, whatever else is installed.

    Raises:
        PluginError: If none of ours is registered.
    """
    del path  # part of the cache's key alone
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=f"longshore.{seam}"):
        found.setdefault(point.name, {}).setdefault(point.value, point)
    points = {name: list(found[name].values()) for name in sorted(found)}
    ours = {name: [point] for name, all_of_it in points.items() for point in all_of_it if is_ours(point)}
    if not ours and seam != "policies":  # ours are heuristics
        what = f"no {SEAMS[seam]} of Longshore's own is registered"
        raise PluginError(f"{what}: what is installed is older than the sources; install it again")
    return points | ours
