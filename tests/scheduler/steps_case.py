"""Jobs on the local backend, in real processes, whose steps a test tells on a clock of its own."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from longshore.scheduler.model.job import JobRow, new_job_id
from longshore.scheduler.model.states import JobState
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions
from longshore.scheduler.store.attempts import AttemptRow, attempts_of
from longshore.scheduler.store.events import EventRow, events_after
from longshore.scheduler.store.jobs import NewJob, get_job, insert_job
from longshore.scheduler.store.nodes import list_nodes

PATIENCE_S = 180.0
SLEEP = ("sleep", "1000")


class StepsCase:
    """A scheduler that ticks only when a test lets it, with four nodes of four slots.

    Args:
        folder: Of the scheduler.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = time.time()
        self.service = Service(ServeOptions(SchedulerSettings(folder=folder, open=True)))
        scheduler = self.service.reconciler
        scheduler.parts = replace(scheduler.parts, now_s=lambda: self.now_s)
        self.store = self.service.store

    def submit(
        self, command: tuple[str, ...] = SLEEP, gpus: int = 4, estimate_s: float = 7200.0, **spec: object
    ) -> str:
        """Submit a job, and return its id once it runs."""
        job = new_job_id(self.now_s)
        reported = {"command": list(command), "gpus": gpus, "grace_s": 5.0, **spec}
        new = NewJob(job, "job", "ada", reported, 0, gpus, estimate_s, self.now_s)
        self.store.write(lambda tx: insert_job(tx, new, writer="api"))
        self.tick_until(lambda: self.job(job).state is JobState.RUNNING)
        return job

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.tick()

    def tick(self) -> None:
        assert self.service.reconciler.tick()

    def tick_until(self, is_so: Callable[[], bool]) -> None:
        """Let real processes begin or end, for which the clock hardly moves."""
        give_up = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < give_up
            self.pass_time(0.01)
            time.sleep(0.01)

    def tell(self, job: str, lines: str, rank: int = 0, file: str = "steps", attempt: int | None = None) -> None:
        """Write as a rank would."""
        number = attempt or self.attempts(job)[-1].number
        with (self.folder / "attempts" / f"ls-{job}-{number}" / f"{file}-{rank}").open("a") as reported:
            reported.write(lines)

    def job(self, job: str) -> JobRow:
        with self.store.read() as tx:
            row = get_job(tx, job)
        assert row is not None
        return row

    def attempts(self, job: str) -> list[AttemptRow]:
        with self.store.read() as tx:
            return attempts_of(tx, job)

    def node(self, job: str) -> str:
        """Return the node of a job's last attempt."""
        return self.attempts(job)[-1].placement[0].node

    def health(self) -> list[EventRow]:
        """Return what was reported of steps."""
        with self.store.read() as tx:
            return [event for event in events_after(tx, 0, 1 << 40) if event.kind == "health"]

    def out_of_service(self) -> Mapping[str, str]:
        with self.store.read() as tx:
            rows = list_nodes(tx)
        return {row.name: row.out_of_service for row in rows if row.out_of_service}

    def end(self) -> None:
        for row in self.running():
            self.service.backend.cancel(row, "cancelled")
        give_up = time.monotonic() + PATIENCE_S
        while not all(self.service.backend.is_proven_gone(row) for row in self.running()):
            assert time.monotonic() < give_up
            time.sleep(0.02)
        self.service.close()

    def running(self) -> list[str]:
        return [path.name for path in (self.folder / "attempts").iterdir()]


@contextmanager
def steps_case(folder: Path) -> Iterator[StepsCase]:
    case = StepsCase(folder)
    try:
        yield case
    finally:
        case.end()
