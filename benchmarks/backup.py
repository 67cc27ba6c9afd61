"""A member of a ring that is slow for a while: how long steps take without and with a backup, and what that changes.

The ring is one of four real processes, on gloo. One of them computes at a quarter of its speed. A client, as a
scheduler has it, starts one process more when the coordinator requests it. See docs/failover.md.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from longshore.ring.folder import make_ring_folder
from longshore.ring.launcher import MemberStart, RingLauncher
from longshore.ring.ring_client import RingClient, request_ring_report
from longshore.ring.wire import MemberOffer

from .harness import ROOT, Row, main, progress
from .reclaim import measure_reclaims
from .rings import warm_process

RUNS = int(os.environ.get("RUNS", "5"))
SEATS, STEPS, COMPUTE_S, SLOW, SLOW_FROM = 4, 450, 0.1, 1, 20
LIMIT_S = 600.0
Steps = list[tuple[float, int, int]]  # when each ended, its number, and the generation in which it was applied


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of one ring."""

    steps: Steps  # of the whole ring: the first member that ended each
    losses: dict[tuple[int, int], float]  # by step and shard
    digests: frozenset[str]
    asked_s: float  # when its coordinator requested a backup


class Trial:
    """One ring.

    Args:
        folder: Of its own.
        warm: Where members are forked from.
        spares: Members beside the seats at the start.
        backups: Slow members that may have backups.
    """

    def __init__(self, folder: Path, warm: Path, *, spares: int = 0, backups: int = 0) -> None:
        self._folder, self._warm, self._spares, self._backups = folder, warm, spares, backups
        self._asked_s = 0.0

    async def run(self, steps: int, *, is_slow: bool, recovers: bool = False) -> Ran:
        """Run it to its end; a member may be slow from some step on, and may recover once another one has its seat."""
        make_ring_folder(self._folder, SEATS, spares=self._spares, backups=self._backups)
        async with asyncio.timeout(LIMIT_S), RingLauncher(self._folder, self._warm) as launcher:
            await launcher.start_coordinator()
            await launcher.connect()
            for member in range(SEATS + self._spares):
                launcher.start(self._start(member, steps))
            if is_slow:
                await self._until(lambda: self._steps(0)[-1:] and self._steps(0)[-1][1] >= SLOW_FROM)
                (self._folder / f"slow-{SLOW}").touch()
            if recovers:
                await self._back_up(launcher, steps)
                (self._folder / f"slow-{SLOW}").unlink()
            end = await launcher.wait_for_end()
        if end.outcome != "done":
            raise RuntimeError(f"the ring is lost: {end.reason}")
        return self._read()

    async def _back_up(self, launcher: RingLauncher, steps: int) -> None:
        """Start a member when the coordinator asks for a backup, and let the ring run with it for a while."""
        scheduler = RingClient(self._folder, lambda: None)
        try:
            await self._until(lambda: scheduler.seat_request is not None and scheduler.seat_request.slow)
            self._asked_s = time.time()
            scheduler.send(MemberOffer(SEATS))
            launcher.start(self._start(SEATS, steps))
            await self._until(
                lambda: (ring := request_ring_report(self._folder)) is not None and ring.relieved == [SLOW]
            )
            await asyncio.sleep(40 * COMPUTE_S)
        finally:
            scheduler.close()

    async def _until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            await asyncio.sleep(0.02)

    def _start(self, member: int, steps: int) -> MemberStart:
        command = (sys.executable, str(ROOT / "benchmarks" / "backup_trainer.py"), str(steps), str(COMPUTE_S))
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        log = self._folder / f"member-{member}.log"
        return MemberStart(member, command, variables, self._folder, log, f"n{member}", member)

    def _lines(self, member: int) -> list[list[str]]:
        path = self._folder / f"member-{member}.log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def _steps(self, member: int) -> Steps:
        return [(float(it[1]), int(it[2]), int(it[3])) for it in self._lines(member) if it[:1] == ["step"]]

    def _read(self) -> Ran:
        members = range(SEATS + 1)
        lines = [line for member in members for line in self._lines(member)]
        first: dict[int, tuple[float, int, int]] = {}
        for it in sorted(step for member in members for step in self._steps(member)):
            first.setdefault(it[1], it)
        return Ran(
            steps=[first[step] for step in sorted(first)],
            losses={(int(it[1]), int(it[2])): float(it[3]) for it in lines if it[:1] == ["loss"]},
            digests=frozenset(it[1] for it in lines if it[:1] == ["end"]),
            asked_s=self._asked_s,
        )


def run(warm: Path, steps: int = STEPS, *, spares: int = 0, backups: int = 0, **how: bool) -> Ran:
    """Run a ring in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="backup-") as folder:
        return asyncio.run(Trial(Path(folder), warm, spares=spares, backups=backups).run(steps, **how))


def took_s(steps: Steps, generation: int) -> list[float]:
    """Return how long each step of a generation took, but the first."""
    ends = [at_s for at_s, _, of in steps if of == generation]
    return [after - before for before, after in pairwise(ends)]


def join_s(steps: Steps, generation: int) -> float:
    """Return how long the first step of a generation took, from the end of the one before."""
    at = next(at for at, it in enumerate(steps) if it[2] == generation)
    return steps[at][0] - steps[at - 1][0]


def measure_steps(warm: Path) -> Iterator[Row]:
    """Run rings without and with a backup, and yield how they differ."""
    progress("undisturbed")
    whole = run(warm, spares=1, backups=1, is_slow=False)
    progress("slow, no backup")
    slow = run(warm, 60, is_slow=True)
    found: list[Ran] = []
    for at in range(RUNS):
        progress(f"slow, with a backup: {at} of {RUNS}")
        found.append(run(warm, backups=1, is_slow=True, recovers=True))
    slow_s = statistics.median(after - before for (before, *_), (after, *_) in pairwise(slow.steps[-30:]))
    usual_s = statistics.median(took_s(whole.steps, 1))
    yield Row("step, no member slow, median", usual_s, "s")
    yield Row("step, a member at a quarter, no backup, median", slow_s, "s")
    with_s = [statistics.median(took_s(it.steps, 2)) for it in found]
    yield Row("step, with a backup, the worst median of all runs", max(with_s), "s")
    yield Row("that over a step without a backup", max(with_s) / slow_s, "", most=0.6, timed=True)
    joins_s, ends_s = ([join_s(it.steps, generation) for it in found] for generation in (2, 3))
    yield Row("the step in which the backup joins, the worst", max(joins_s), "s")
    yield Row("that beside a step, in steps before it", max(joins_s) / slow_s - 1.0, "steps", most=1.0, timed=True)
    yield Row("the step in which it leaves, the worst", max(ends_s), "s")
    asked_s = [it.asked_s - next(at_s for at_s, step, _ in it.steps if step == SLOW_FROM) for it in found]
    yield Row("from the first slow step to the request for a backup", max(asked_s), "s")
    yield from _same(whole, found)


def _same(whole: Ran, found: list[Ran]) -> Iterator[Row]:
    """Yield whether rings with a slow member gave the results of one that had five members from the start."""

    def count(name: str, are: Iterable[bool]) -> Row:
        return Row(name, sum(are), f"of {RUNS}", least=RUNS)

    yield count("no step lost", ([it[1] for it in one.steps] == list(range(STEPS)) for one in found))
    yield count("each loss reported but in the last step of a generation", (_has_losses(whole, it) for it in found))
    apart = max(abs(value - whole.losses[key]) for it in found for key, value in it.losses.items())
    yield Row("losses apart from a ring of five members, at most", apart, "", most=1e-5)
    yield count("parameters and Adam's state bit-equal", (it.digests == whole.digests for it in found))


def _has_losses(whole: Ran, one: Ran) -> bool:
    """Return whether members wrote each loss, but of the last step before the ring was formed again.

    A member that is stopped before it applies this step copies it from another one, and has no loss to write.
    """
    last = {before[1] for before, after in pairwise(one.steps) if before[2] != after[2]}
    return all(step in last for step, _ in whole.losses.keys() ^ one.losses.keys())


def measure() -> Iterator[Row]:
    """Relieve slow members, then kill processes while a ring gives GPUs back."""
    with warm_process() as warm:
        yield from measure_steps(warm)
    yield from measure_reclaims()


if __name__ == "__main__":
    main(measure)
