"""Rings of four real processes that lose a member: how long until the next step, and whether the bits are the same.

Each trial is a ring of its own, in a folder of its own; all fork their members from one warm process.
"""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longshore.ring import wire
from longshore.ring.folder import make_ring_folder
from longshore.ring.launcher import MemberStart, RingLauncher
from longshore.ring.wire import from_json, greet

from .harness import ROOT, Row, progress

RUNS = int(os.environ.get("RUNS", "50"))  # of each kind; a tenth as many of those without a warm process
AT_ONCE = 5  # rings that wait for a member that was stopped
SEATS, STEPS, PAUSE_S, KILLED_AT = 4, 30, 0.02, 10
MANY = 8  # seats of the rings in which most members are no neighbours of the one that is lost
LIMIT_S = 180.0
PHASES = ("detect_s", "stop_s", "choose_s", "form_s", "copy_s", "first_step_s")
# torchft-nightly 2026.10, 3 replicas, gloo, killed between steps.
TORCHFT_S = {"defaults": 5.05, "join timeout 1 s": 1.14}


@dataclass(frozen=True, slots=True)
class Recovered:
    """The outcome of one ring."""

    outage_s: float  # from the fault to the first step that was finished after it
    stopped_s: float  # from the fault until the last of the other members has stopped
    phases: wire.Recovery
    digests: frozenset[str]
    steps: int
    ended: int  # exit status of the member that the fault befell
    is_quiet: bool  # whether that member wrote nothing after the fault


@contextmanager
def warm_process() -> Iterator[Path]:
    """Start a process that members are forked from."""
    with tempfile.TemporaryDirectory(prefix="rings-") as folder:
        path = Path(folder) / "warm.sock"
        process = subprocess.Popen([sys.executable, "-m", "longshore.ring.warm", str(path)], env=_environment())
        try:
            while not path.exists():
                time.sleep(0.05)
            yield path
        finally:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


class Trial:
    """One ring of which a member is killed or stopped.

    Args:
        folder: Of its own.
        warm: Where members are forked from.
        spare: What takes the seat: a `warm` spare that waits, one that is `forked`, one that starts `cold`, or `none`.
        steps: To be taken.
        host: Address of the coordinator.
        seats: Of the ring.
    """

    def __init__(
        self, folder: Path, warm: Path, spare: str, *, steps: int = STEPS, host: str = "127.0.0.1", seats: int = SEATS
    ) -> None:  # fmt: skip
        self._folder, self._warm, self._spare, self._host, self._seats = folder, warm, spare, host, seats
        self._command = (sys.executable, str(ROOT / "benchmarks" / "ring_trainer.py"), str(steps), str(PAUSE_S))

    def environment(self, member: int) -> dict[str, str]:
        """Return the environment of a member."""
        return _environment()

    async def run(self, number: signal.Signals | None) -> Recovered:
        """Run it to its end; the last member is sent a signal on the way."""
        make_ring_folder(self._folder, self._seats)
        async with (
            asyncio.timeout(LIMIT_S),
            RingLauncher(self._folder, self._warm, self._exited) as launcher,
            RingLauncher(self._folder) as self._cold,
        ):
            self._launcher = launcher
            await launcher.start_coordinator(self._host)
            await launcher.connect()
            await self._cold.connect()
            for member in range(self._seats + (self._spare == "warm")):
                launcher.start(self._start(member))
            at_s = 0.0 if number is None else await self._harm(number)
            await launcher.wait_for_end()
            if self._cold.exits or self._spare == "cold":
                await self._cold.wait_for_end()
            return self._read(at_s)

    def _start(self, member: int) -> MemberStart:
        log = self._folder / f"member-{member}.log"
        return MemberStart(member, self._command, self.environment(member), self._folder, log)

    def _exited(self, it: MemberStart, status: int) -> None:
        if it.member == self._seats - 1 and status == -signal.SIGKILL:
            starts = {"forked": self._launcher, "cold": self._cold}
            if self._spare in starts:
                starts[self._spare].start(self._start(self._seats))

    async def _harm(self, number: signal.Signals) -> float:
        while self._spare == "warm" and self._seats not in (await self._report()).spares:
            await asyncio.sleep(0.02)
        member = self._seats - 1
        while not any(step >= KILLED_AT for _, step, _ in self._steps(member)):
            await asyncio.sleep(0.005)
        pid = self._launcher.running_pids[member]
        at_s = time.time()
        os.kill(pid, number)
        if number is signal.SIGSTOP:
            del self._launcher._running[member]  # as if it were on another machine, where it cannot be killed
            while not any(generation > 1 for _, _, generation in self._steps(0)):
                await asyncio.sleep(0.05)
            os.kill(pid, signal.SIGCONT)
        return at_s

    async def _report(self) -> wire.RingReport:
        host, _, port = self._launcher.coordinator_address().rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=wire.MAX_LINE_BYTES)
        secret = json.loads((self._folder / "ring.json").read_text())["secret"]
        await greet(reader, writer, secret, wire.Hello("status"))
        answer = wire.decode(await reader.readline())
        writer.close()
        assert isinstance(answer, wire.RingReport)
        return answer

    def _lines(self, member: int) -> list[list[str]]:
        path = self._folder / f"member-{member}.log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def _steps(self, member: int) -> list[tuple[float, int, int]]:
        return [
            (float(it[1]), int(it[2]), int(it[3])) for it in self._lines(member) if it[0] == "step" and len(it) == 4
        ]

    def _stopped_s(self, member: int) -> float:
        """Return when a member first stopped for another generation."""
        return min((float(it[1]) for it in self._lines(member) if it[0] == "stopped"), default=float("inf"))

    def _read(self, at_s: float) -> Recovered:
        members = range(self._seats + 1)
        steps = [step for member in members for step in self._steps(member)]
        after = [now_s for now_s, _, generation in steps if generation > 1]
        digests = [line[1] for member in members for line in self._lines(member) if line[0] == "end"]
        late = [now_s for now_s, _, _ in self._steps(self._seats - 1) if now_s > at_s + 1.0]
        whole = len(digests) == self._seats - (self._spare == "none")
        return Recovered(
            outage_s=min(after, default=float("inf")) - at_s,
            stopped_s=max((self._stopped_s(it) for it in range(self._seats - 1)), default=float("inf")) - at_s,
            phases=self._recovery(),
            digests=frozenset(digests) if whole else frozenset(("not all members ended",)),
            steps=len({step for _, step, _ in steps}),
            ended=self._launcher.exits[self._seats - 1],
            is_quiet=not late,
        )

    def _recovery(self) -> wire.Recovery:
        """Return the seconds of each phase, as the coordinator recorded them."""
        found = json.loads((self._folder / "recoveries.json").read_bytes())
        recovery: wire.Recovery = from_json(found[-1], wire.Recovery)
        return recovery


def run_all(
    warm: Path, spare: str, number: signal.Signals | None, runs: int, at_once: int, seats: int = SEATS
) -> list[Recovered]:  # fmt: skip
    """Run rings of one kind, some at once, and return the outcome of each."""

    async def one() -> Recovered:
        with tempfile.TemporaryDirectory(prefix="ring-") as folder:
            return await Trial(Path(folder), warm, spare, seats=seats).run(number)

    async def some(count: int) -> list[Recovered]:
        return list(await asyncio.gather(*(one() for _ in range(count))))

    found: list[Recovered] = []
    while len(found) < runs:
        progress(f"{spare}: {len(found)} of {runs}")
        found += asyncio.run(some(min(at_once, runs - len(found))))
    return found


def measure_recoveries() -> Iterator[Row]:
    """Kill and stop members, and yield how long it took and whether anything was lost."""
    with warm_process() as warm:
        (undisturbed,) = run_all(warm, "undisturbed", None, 1, 1)
        killed = run_all(warm, "warm", signal.SIGKILL, RUNS, 1)
        yield from _rows("warm spare", killed, undisturbed, median_s=0.3, worst_s=1.5)
        forked = run_all(warm, "forked", signal.SIGKILL, RUNS, 1)
        yield from _rows("spare forked from a warm process", forked, undisturbed, median_s=1.0)
        cold = run_all(warm, "cold", signal.SIGKILL, max(RUNS // 10, 1), 1)
        yield from _rows("cold spare", cold, undisturbed, median_s=8.0)
        shrunk = run_all(warm, "none", signal.SIGKILL, max(RUNS // 10, 1), 1)
        yield Row("no spare, shrunk: seconds to the next step, median", _median(shrunk), "s", most=0.3)
        many = run_all(warm, "warm", signal.SIGKILL, max(RUNS // 10, 1), 1, MANY)
        yield from _stops(many)
        stopped = run_all(warm, "warm", signal.SIGSTOP, RUNS, AT_ONCE)
        yield from _rows("stopped, warm spare", stopped, undisturbed, median_s=12.0)
        refused = sum(it.ended == wire.GONE_STATUS and it.is_quiet for it in stopped)
        yield Row("stopped: woke up, wrote nothing, ended itself", refused, f"of {RUNS}", least=RUNS)
    for what, outage_s in TORCHFT_S.items():
        yield Row(f"torchft 2026.10, {what}, as recorded", outage_s, "s")


def _stops(found: Sequence[Recovered]) -> Iterator[Row]:
    """Yield how soon all others have stopped: gloo alone would let those wait that are no neighbours of the dead."""
    what = f"{MANY} seats, one killed: seconds until all others have stopped"
    yield Row(f"{what}, median", statistics.median(it.stopped_s for it in found), "s", most=0.5)
    yield Row(f"{what}, the worst of {len(found)}", max(it.stopped_s for it in found), "s")


def _rows(
    what: str, found: Sequence[Recovered], undisturbed: Recovered, median_s: float, worst_s: float | None = None
) -> Iterator[Row]:
    yield Row(f"{what}: seconds to the next step, median", _median(found), "s", most=median_s)
    yield Row(f"{what}: the worst of {len(found)}", max(it.outage_s for it in found), "s", most=worst_s)
    for phase in PHASES:
        name = phase.removesuffix("_s").replace("_", " ")
        yield Row(f"{what}: {name}", statistics.median(getattr(it.phases, phase) for it in found), "s")
    equal = sum(it.digests == undisturbed.digests for it in found)
    yield Row(f"{what}: parameters and Adam's state bit-equal", equal, f"of {len(found)}", least=len(found))
    whole = sum(it.steps == STEPS for it in found)
    yield Row(f"{what}: no step lost", whole, f"of {len(found)}", least=len(found))


def _median(found: Sequence[Recovered]) -> float:
    return statistics.median(it.outage_s for it in found)
