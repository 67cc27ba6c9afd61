"""Runs a ring of real processes in a folder of its own, causes faults, and reads the logs of its members."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.namespaces import MANAGER, VARIABLE, Network
from longshore.ring import wire
from longshore.ring.folder import make_ring_folder, read_state
from longshore.ring.launcher import MemberStart, RingLauncher
from longshore.ring.membership import RingLimits
from longshore.ring.wire import greet
from tests.support import processes
from tests.support.processes import PYTHON_PATH

from .lossy_proxy import Loses, LossyProxy

TRAINER = Path(__file__).with_name("trainer.py")
LIMIT_S = 120.0  # for anything at all to happen, on a busy machine


@contextmanager
def warm_process() -> Iterator[Path]:
    """Start a process that members are forked from."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        path = Path(folder) / "warm.sock"
        variables = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        process = processes.start([sys.executable, "-m", "longshore.ring.warm", str(path)], env=variables)
        try:
            yield path
        finally:
            process.kill()
            process.wait()


@dataclass
class Outcome:
    """The outcome of a ring."""

    end: wire.RingEnd
    exits: dict[int, int]
    declared: dict[int, str]
    lines: list[dict[str, Any]]
    report: dict[str, Any]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]

    def digests(self) -> set[str]:
        return {line["content"][0] for line in self.of("end")}

    def steps(self) -> list[int]:
        """Return each step that any member applied, once."""
        return sorted({line["content"][0] for line in self.of("step")})

    def generation(self) -> int:
        return int(self.report["generation"])


@dataclass
class Trial:
    """A ring while it runs."""

    folder: Path
    launcher: RingLauncher
    elsewhere: RingLauncher  # not connected, as on a machine that cannot be reached
    away: frozenset[int]  # members that are started there
    command: tuple[str, ...]
    environment: dict[str, str]
    again: int = 0  # members that are started for those that die
    network: Network | None = None  # each member runs on the node of its number
    proxy: LossyProxy | None = None  # between the coordinator and all others
    next: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, rank: int = -1) -> int:
        number, self.next = self.next, self.next + 1
        log = self.folder / f"member-{number}.log"
        place = {} if self.network is None else {VARIABLE: self.network.name(number)}
        environment = self.environment | place
        launcher = self.elsewhere if number in self.away else self.launcher
        launcher.start(MemberStart(number, self.command, environment, self.folder, log, f"node-{number}", rank))
        return number

    def exited(self, it: MemberStart, status: int) -> None:
        if status and (self.again or status == wire.RESTART_STATUS) and not self.launcher.is_over:
            self.again -= status != wire.RESTART_STATUS
            self.start()

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.folder.glob("member-*.log")):
            whole = path.read_text().rpartition("\n")[0]  # the last line may be being written
            found += [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return found

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not what():
                await asyncio.sleep(0.02)

    async def reached(self, step: int, member: int | None = None) -> None:
        def is_there() -> bool:
            lines = [it for it in self.lines() if it["kind"] == "step" and member in (None, it["member"])]
            return any(line["content"][0] >= step for line in lines)

        await self.until(is_there)

    def slow(self, member: int, *, is_slow: bool) -> None:
        """Let a member compute for eight times as long, or no longer."""
        path = self.folder / f"slow-{member}"
        path.touch() if is_slow else path.unlink()

    async def is_relieved(self, members: list[int]) -> None:
        while (await self.report()).relieved != members:
            await asyncio.sleep(0.02)

    async def seated(self, generation: int) -> None:
        def is_there() -> bool:
            return bool([it for it in self.lines() if it["kind"] == "step" and it["content"][1] >= generation])

        await self.until(is_there)

    async def spare_joined(self, number: int) -> None:
        while number not in (await self.report()).spares:
            await asyncio.sleep(0.02)

    async def report(self) -> wire.RingReport:
        address = self.launcher.coordinator_address() if self.proxy is None else self.proxy.address()
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(LIMIT_S):
            while True:
                with suppress(OSError):  # no process listens while a coordinator restarts
                    reader, writer = await asyncio.open_connection(host, int(port), limit=wire.MAX_LINE_BYTES)
                    break
                await asyncio.sleep(0.02)
        secret = json.loads((self.folder / "ring.json").read_text())["secret"]
        await greet(reader, writer, secret, wire.Hello("status"))
        answer = wire.decode(await reader.readline())
        writer.close()
        assert isinstance(answer, wire.RingReport)
        return answer

    def send(self, member: int, number: signal.Signals) -> None:
        pid = (self.launcher.running_pids | self.elsewhere.running_pids)[member]
        processes.stop(pid) if number == signal.SIGSTOP else os.kill(pid, number)

    def kill_coordinator(self) -> None:
        assert self.launcher.coordinator_pid is not None
        os.kill(self.launcher.coordinator_pid, signal.SIGKILL)


During = Callable[[Trial], Awaitable[object]]


async def nothing(trial: Trial) -> None:
    """Let the ring run."""


def run_ring(
    folder: Path,
    warm: Path | None,
    *,
    seats: int = 4,
    spares: int = 0,
    again: int = 0,
    steps: int = 30,
    pause_s: float = 0.01,
    faults: Sequence[dict[str, Any]] = (),
    during: During = nothing,
    limits: RingLimits | None = None,
    checkpoints: Path | None = None,
    network: Network | None = None,
    away: Iterable[int] = (),
    backups: int = 0,
    loses: Loses | None = None,
    wait_s: float = wire.SILENCE_S,
    **environment: str,
) -> Outcome:
    """Run a ring to its end."""

    async def run() -> Outcome:
        make_ring_folder(folder, seats, limits, spares=spares, backups=backups)
        variables = {**os.environ, "FAULTS": json.dumps(list(faults)), "OMP_NUM_THREADS": "1", **environment}
        variables["PYTHONPATH"] = PYTHON_PATH
        command = (sys.executable, str(TRAINER), str(steps), str(pause_s), *([str(checkpoints)] if checkpoints else []))
        async with (
            asyncio.timeout(3 * LIMIT_S),
            RingLauncher(folder, warm, wait_s=wait_s) as launcher,
            RingLauncher(folder, warm, wait_s=wait_s) as elsewhere,
        ):  # fmt: skip
            trial = Trial(folder, launcher, elsewhere, frozenset(away), command, variables, again, network)
            launcher.on_exit = trial.exited
            await launcher.start_coordinator("127.0.0.1" if network is None else MANAGER)
            if loses is not None:
                trial.proxy = LossyProxy(launcher.coordinator_address, loses)
                between = await trial.proxy.start()
                setattr(launcher, "coordinator_address", lambda: between)  # noqa: B010  # of what the launcher itself has no need
            await launcher.connect()
            for _ in range(seats + spares):
                trial.start()
            await during(trial)
            end = await launcher.wait_for_end()
            await trial.until(lambda: not elsewhere.running_pids)
            if trial.proxy is not None:
                await trial.proxy.close()
            report = read_state(folder)[1]
            return Outcome(end, launcher.exits | elsewhere.exits, launcher.declared, trial.lines(), report)

    return asyncio.run(run())


def assert_as_undisturbed(found: Outcome, undisturbed: Outcome, members: int = 4) -> None:
    """Every step was taken, and all members that are left have the bits of a ring in which nothing went wrong."""
    assert found.end.outcome == "done", found
    assert found.steps() == undisturbed.steps()
    ends = {tuple(map(str, (line["content"][0], line["content"][3], line["content"][4]))) for line in found.of("end")}
    assert ends == {
        tuple(map(str, (it["content"][0], it["content"][3], it["content"][4]))) for it in undisturbed.of("end")
    }
    assert len(found.of("end")) == members
    # A thread of an abandoned group must not poll data that is never read without a pause.
    assert [line["member"] for line in found.of("polls") if line["content"]] == []
