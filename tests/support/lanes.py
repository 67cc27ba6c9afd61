"""A plug-in of pytest: what belongs to which lane, what begins first, and what the quick one leaves to the full one."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

LEFT: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the full lane what a test has of parameters beyond those for the quick one; bring long files forward.

    They come in the order that pytest-randomly has brought them into.
    """
    items.sort(key=lambda it: it.get_closest_marker("long") is None)
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few"):
            families[item.nodeid.partition("[")[0]].append(item)
    for family in families.values():
        mark = family[0].get_closest_marker("few")
        assert mark is not None
        taken = spread(len(family), *mark.args)
        for at, item in enumerate(family):
            if at not in taken:
                item.add_marker(pytest.mark.full)


def spread(count: int, most: int) -> set[int]:
    """Return which of a number of things to take, as evenly over all of them as can be."""
    return {at * count // most for at in range(most)} if most < count else set(range(count))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("full"):
            item.config.stash[LEFT]["/".join(item.nodeid.split("::")[0].split("/")[:3]).removesuffix(".py")] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist
        counts = session.config.stash[LEFT]
        session.config.workeroutput["left"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of any process: all collect the same tests."""
    if left := getattr(node, "workeroutput", {}).get("left"):
        counts: Counter[str] = Counter(left)
        node.config.stash[LEFT] = counts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash[LEFT]
    if left:
        rooms = ", ".join(f"{room} {count}" for room, count in left.most_common())
        terminalreporter.write_line(f"left to make test-full: {left.total()} tests ({rooms}), and most examples of all")
