"""A scheduler on a simulated cluster in which calls fail."""

import re
from dataclasses import replace

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.files.errors import BackendError
from longshore.cluster.files.processes import this_process_name
from longshore.cluster.model.placement import Placement
from longshore.scheduler.backends.protocol import Attempt, CannotHonourError
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import Desired, JobState, Status
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.attempts import AttemptRow, attempts_of
from longshore.scheduler.store.database import Store
from longshore.scheduler.store.events import EventRow, events_after
from longshore.scheduler.store.jobs import get_job, list_jobs, set_desired
from longshore.testing.simulated import SimulatedBackend
from longshore.testing.twin import Twin, id_of
from tests.compiled_runs import compiled
from tests.plain_run import busy_case
from tests.scheduler.live_run import site_of
from tests.scheduler.twin_run import layout_of

PACK = HEURISTICS["pack"]


class Trouble(SimulatedBackend):
    """A cluster that does not always do as it is reported."""

    silent = False  # it answers nothing
    refuses: frozenset[str] = frozenset()  # jobs that it does not start on the GPUs that were chosen
    stuck = 0  # calls to cancel that fail
    unforgetting = 0  # calls to forget that fail
    unstarting: frozenset[str] = frozenset()  # jobs of which nobody knows whether it starts them
    saved_s: float | None = None  # what all attempts tell that they have saved; as a simulation has it if None

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        if self.silent:
            raise BackendError("no answer")
        found = super().statuses(names)
        if self.saved_s is None:
            return found
        return {name: replace(status, progress={"saved_s": self.saved_s}) for name, status in found.items()}

    def forget(self, name: str) -> None:
        if self.unforgetting > 0:
            self.unforgetting -= 1
            raise BackendError("busy")
        super().forget(name)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        if attempt.job in self.refuses:
            raise CannotHonourError("somebody else has them")
        if attempt.job in self.unstarting:
            raise OSError("a mistake of the backend")
        super().launch(attempt, placement)

    def cancel(self, name: str, reason: str) -> None:
        if self.stuck > 0:
            self.stuck -= 1
            raise BackendError("status 500")
        super().cancel(name, reason)


class Case:
    """A scheduler of ten jobs on such a cluster."""

    def __init__(self, store: Store) -> None:
        case = busy_case(ring=False)
        self.store, self.backend = store, Trouble(compiled(case), layout_of(case))
        gone = re.sub(r"(?<= start )[0-9]+", "0", this_process_name())  # each scheduler is one that is proven dead
        self.twin = Twin(self.backend, site_of(case), store, Placer(PACK), gone)

    def live_on(self, moments: int = 1) -> None:
        for _ in range(moments):
            self.twin.process_next_moment()
            self.twin.tick()

    def crash(self) -> None:
        """Go on as another process would that finds the store of one that was killed."""
        self.twin.scheduler = Reconciler(self.twin.parts)

    def job(self, number: int) -> JobRow:
        with self.store.read() as tx:
            row = get_job(tx, id_of(number))
        assert row is not None
        return row

    def attempts(self, number: int) -> list[AttemptRow]:
        with self.store.read() as tx:
            return attempts_of(tx, id_of(number))

    def wish(self, number: int, desired: Desired) -> None:
        self.store.write(lambda tx: set_desired(tx, id_of(number), desired, at_s=0.0, writer="api"))

    def events(self) -> list[EventRow]:
        with self.store.read() as tx:
            return events_after(tx, 0, 1 << 40)

    def jobs_in(self, state: JobState) -> list[int]:
        with self.store.read() as tx:
            return [int(row.id) for row in list_jobs(tx, limit=100, states={state})]
