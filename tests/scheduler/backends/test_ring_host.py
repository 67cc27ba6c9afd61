"""The process that runs a ring for its supervisor, when what it does fails: it ends, and holds no GPU for ever."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from longshore.ring import launcher
from longshore.ring.folder import Appointment, appoint, make_ring_folder, write_file
from longshore.ring.launcher import RingLauncher
from longshore.ring.membership import RingLimits
from longshore.ring.wire import UNKNOWN_STATUS, RingEnd
from longshore.scheduler.backends.local import ring_host
from longshore.scheduler.backends.local.ranks import RankPlace, Spec
from longshore.scheduler.backends.local.ring_files import RING, RingPart, read_places
from longshore.scheduler.backends.local.ring_host import RingHost

FULL = OSError(errno.ENOSPC, "No space left on device")


def run_host(
    folder: Path, script: str, during: Callable[[RingHost], Awaitable[object]] | None = None, gather_s: float = 2.0
) -> tuple[int, RingHost]:
    """Run a ring of two seats whose members are shells, to its end; they never say a word, and live for `gather_s`."""
    make_ring_folder(folder / RING, 2, limits=RingLimits(gather_s=gather_s))
    ranks = (RankPlace("n", 0), RankPlace("n", 1))
    variables = {"PATH": os.environ["PATH"]}
    spec = Spec("ls-x-1", "x", 1, ("sh", "-c", script), str(folder), variables, 5.0, None, ranks, 2)

    async def run() -> tuple[int, RingHost]:
        host = RingHost(spec, str(folder))
        host._supervisor = -1  # The parent here has other children, which run other tests.
        async with asyncio.timeout(120):
            task = asyncio.create_task(host.run())
            if during is not None:
                await during(host)
            return await task, host

    return asyncio.run(run())


async def all_run(host: RingHost) -> None:
    while not hasattr(host, "_launcher") or len(host._launcher.running_pids) < 2:
        await asyncio.sleep(0.05)


def failing(work: Callable[..., Any], calls: set[int]) -> Callable[..., Any]:
    """Return the same work, which fails at some of its calls."""
    count = iter(range(1000))

    def call(*given: Any, **named: Any) -> Any:
        if next(count) in calls:
            raise FULL
        return work(*given, **named)

    return call


@pytest.mark.few(1)
@pytest.mark.parametrize("calls", [{0}, {1}, {2}, {3}, {4}, {5, 6, 7}], ids=str)
def test_a_write_that_fails_ends_nothing_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: set[int]
) -> None:
    monkeypatch.setattr(ring_host, "write_file", failing(write_file, calls))
    status, host = run_host(tmp_path, "exit 9")
    assert status == 9
    assert host._launcher.exits
    assert not host._launcher.running_pids


def leaves_one(host: RingHost) -> Callable[[], bool]:
    return lambda: 0 in (places := read_places(Path(host._path) / RING)) and places[0][3]


@pytest.mark.few(1)
@pytest.mark.parametrize("work", ["kill_members", "drop_beginning", "read_added_place", "write_file"])
def test_looks_that_fail_are_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    async def during(host: RingHost) -> None:
        await all_run(host)
        monkeypatch.setattr(ring_host, work, failing(getattr(ring_host, work), {0, 1}))
        (tmp_path / "end-0").touch()
        while not leaves_one(host)():
            await asyncio.sleep(0.05)
        (tmp_path / RING / "add-2.json").write_text('[["n", 2]]')
        while 2 not in host._ranks.values():
            await asyncio.sleep(0.05)
        for rank in (1, 2):
            (tmp_path / f"end-{rank}").touch()

    sees = "echo $LOCAL_RANK $LOCAL_WORLD_SIZE $CUDA_VISIBLE_DEVICES ${RANK-unset} > sees-$rank"
    script = f'rank=${{LONGSHORE_STEPS##*-}}; {sees}; while [ ! -e "end-$rank" ]; do sleep 0.1; done; exit 76'
    _, host = run_host(tmp_path, script, during, gather_s=100.0)
    assert {0, 1} <= host._left | host._leaving
    assert 0 in host._left
    seen = [(tmp_path / f"sees-{rank}").read_text() for rank in range(3)]
    assert seen == ["0 2 0,1 unset\n", "1 2 0,1 unset\n", "1 2 1,2 unset\n"]  # what was left is seen no more


def test_a_script_that_ends_with_the_status_of_a_restart_uses_up_its_restarts(tmp_path: Path) -> None:
    status, host = run_host(tmp_path, "exit 77")
    assert len(host._ranks) <= 2 + ring_host.RESTARTS
    assert status == 77


@pytest.mark.full
def test_a_coordinator_that_cannot_be_started_at_first_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    real = launcher.start_tool

    async def start(*given: Any, **named: Any) -> Any:
        started.append(1)
        if len(started) in (2, 3):
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return await real(*given, **named)

    async def kill(host: RingHost) -> None:
        await all_run(host)
        os.kill(host._launcher.coordinator_pid or 0, signal.SIGKILL)

    monkeypatch.setattr(launcher, "start_tool", start)
    status, _ = run_host(tmp_path, "sleep 3; exit 9", kill)
    assert (len(started), status) == (4, 9)


@pytest.mark.full
def test_a_coordinator_that_can_never_be_started_again_ends_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(*_: Any, **_named: Any) -> Any:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    async def kill(host: RingHost) -> None:
        await all_run(host)
        monkeypatch.setattr(launcher, "start_tool", start)
        monkeypatch.setattr(launcher, "MAX_RESTARTS", 3)
        os.kill(host._launcher.coordinator_pid or 0, signal.SIGKILL)

    status, host = run_host(tmp_path, "sleep 1000", kill)
    assert not host._launcher.running_pids
    assert status == -signal.SIGKILL


@pytest.mark.full
def test_a_coordinator_that_hangs_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MAX_UNANSWERED_S", 2.0)
    monkeypatch.setattr(launcher, "COORDINATOR_PROBE_S", 0.5)

    async def stop(host: RingHost) -> None:
        await all_run(host)
        before = host._launcher.coordinator_pid
        os.kill(before or 0, signal.SIGSTOP)
        while host._launcher.coordinator_pid == before:
            await asyncio.sleep(0.05)
        (tmp_path / "end").touch()

    status, _ = run_host(tmp_path, 'while [ ! -e "end" ]; do sleep 0.1; done; exit 9', stop)
    assert status == 9


def test_the_rank_of_a_member_that_was_declared_gone_is_unused_before_its_process_has_ended(tmp_path: Path) -> None:
    async def declare(host: RingHost) -> None:
        await all_run(host)
        host._on_declared_gone(1, "its GPU is broken")
        places = read_places(tmp_path / RING).values()
        assert [(used, left) for _, _, used, left, _, _ in places] == [(True, False), (False, False)]
        (tmp_path / "end").touch()

    run_host(tmp_path, 'while [ ! -e "end" ]; do sleep 0.1; done; exit 9', declare)


@pytest.mark.parametrize(
    ("exits", "status"),
    [
        ({0: UNKNOWN_STATUS}, 1),
        ({0: UNKNOWN_STATUS, 1: -9}, -9),
        ({0: 3, 1: -9}, 3),
        ({0: 77, 1: -9}, 77),
        ({0: 76, 1: 0}, 1),
    ],
)
def test_an_attempt_ends_as_its_scripts_did(tmp_path: Path, exits: dict[int, int], status: int) -> None:
    async def ended() -> int:
        host = RingHost(Spec("ls-x-1", "x", 1, ("x",), str(tmp_path), {}, 5.0, None, (), 1), str(tmp_path))
        make_ring_folder(tmp_path / RING, 1)
        host._launcher = RingLauncher(tmp_path / RING)
        host._launcher.exits.update(exits)
        return host._exit_status(RingEnd("lost", "made up"))

    assert asyncio.run(ended()) == status


class Coordinates:
    """What a host asks of its launcher about the coordinator."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.fails = False

    async def start_coordinator(self, host: str, epoch: int) -> None:
        self.calls.append(epoch)
        if self.fails:
            raise OSError("made up")

    async def end_coordinator(self) -> None:
        self.calls.append("none")

    def give_up(self, end: RingEnd, epoch: int) -> None:
        self.calls.append((end.outcome, epoch))


def test_a_host_runs_the_coordinator_of_the_epoch_that_it_is_appointed_to_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, places = tmp_path / RING, (RankPlace("n", 0), RankPlace("m", 0))
    make_ring_folder(ring, 2)
    spec = Spec("ls-x-1", "x", 1, ("x",), str(tmp_path), {}, 5.0, None, places, 2)
    (tmp_path / "part-1").mkdir()
    host: Any = RingHost(spec, str(tmp_path), RingPart(1, {1: "0"}, str(tmp_path / "part-1")))
    host._launcher = launcher = Coordinates()

    async def follow() -> list[object]:
        launcher.calls.clear()
        for _ in range(2):
            await host._follow_appointment()
        return list(launcher.calls)

    async def fail() -> None:
        for now_s in (1.0, 30.0, 62.0):
            monkeypatch.setattr(time, "monotonic", lambda now_s=now_s: now_s)
            with pytest.raises(OSError, match="made up"):
                await host._follow_appointment()

    assert asyncio.run(follow()) == ["none", "none"]
    appoint(ring, Appointment(1, 1))
    assert asyncio.run(follow()) == [1]
    appoint(ring, Appointment(2, 0))
    assert asyncio.run(follow()) == ["none", "none"]
    appoint(ring, Appointment(3, 1))
    assert asyncio.run(follow()) == [3]
    appoint(ring, Appointment(4, 1))
    launcher.fails = True
    asyncio.run(fail())
    assert launcher.calls == [3, 4, 4, 4, ("lost", 4)]


def test_a_host_ends_once_its_ranks_are_left_unless_it_runs_the_coordinator(tmp_path: Path) -> None:
    spec = Spec("ls-x-1", "x", 1, ("x",), str(tmp_path), {}, 5.0, None, (RankPlace("n", 0), RankPlace("m", 0)), 2)
    (tmp_path / "part-1").mkdir()
    host: Any = RingHost(spec, str(tmp_path), RingPart(1, {1: "0"}, str(tmp_path / "part-1")))
    host._left, host._is_appointed = {1}, True
    host._prove_ranks_left()
    assert not host._all_left.is_set()
    host._is_appointed = False  # as another host was appointed since
    host._prove_ranks_left()
    assert host._all_left.is_set()
