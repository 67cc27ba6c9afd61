"""Empty seats of rings are filled from the GPUs that are free, and GPUs that rings have left are given to others.

The leader is the desk of each ring that runs. A ring that is short of members gets a free GPU before any job that
waits. What it is given is reserved before the backend hears of it, and what it has left is freed after the backend has
proven it: wherever a scheduler is killed, the next one finds which GPUs a ring holds. Source: SPEC F5 to F10;
docs/decisions/0015.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial

from ....cluster.files.errors import BackendError
from ....cluster.switching.replacement import FORMULAS
from ...backends.asking import ask
from ...backends.protocol import Desk, MemberPlace, Seats
from ...failover.wire import Coming, Empty, NoneComing, Want
from ...mirror.vacant_seats import Choice, choose_for, free_for, warm_up, with_which_faster
from ...model.event import NewEvent
from ...model.job_id import name_of
from ...model.states import AttemptState
from ...model.stored_spec import is_switching, stored_or_usual
from ...store.database.errors import TakenError
from ...store.monitoring.compute_records import records_of
from ...store.monitoring.replacements import (
    EMPTY,
    FOUND,
    LEFT,
    SEAT,
    TAKEN,
    ReplacementRow,
    give,
    note,
    replacements_of,
    take_back,
)
from ...store.rows.attempts import AttemptRow
from ...store.rows.nodes import list_gpus
from ..state_cache import WRITER, Parts, StateCache
from .vacancies import Around, described, ring_of, words_of_choice

log = logging.getLogger(__name__)

HOUR_S = 3600.0
LEAST_IN_AN_HOUR = 3  # GPUs that a ring is given; one of many seats may have as many as these
ANOTHERS = "its GPU is another job's"
NOBODY = Choice(-1, ())


class _Ring:
    """A ring that runs.

    Args:
        row: Its attempt.
        desk: Of it.
    """

    def __init__(self, row: AttemptRow, desk: Desk) -> None:
        self.row, self.desk = row, desk
        self.given: list[ReplacementRow] | None = None  # None while the store is to be asked
        self.told = -1  # generation about whose empty seats people were told
        self.refused = -1  # generation whose coordinator was told that nobody comes
        self.short = 0  # seats that it goes on without, as nobody came; 0 after another scheduler

    @property
    def name(self) -> str:
        """What the backend knows it by."""
        return name_of(self.row.job_id, self.row.number)


class Seating:
    """Keeps a desk for each ring, as long as this scheduler leads.

    Args:
        parts: What the scheduler works with.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backend = parts.backend if isinstance(parts.backend, Seats) else None
        self._rings: dict[str, _Ring] = {}  # by job
        self._cache: StateCache | None = None

    def warm_up(self) -> None:
        """Let what a choice needs be compiled before there is a fault: a ring waits for it."""
        if self._backend is not None:
            warm_up(self._parts.site.cluster)

    def look(self, cache: StateCache, against: str, now_s: float) -> None:
        """Free what rings have left, and fill their empty seats.

        Args:
            cache: What the scheduler knows.
            against: Why no GPU may be given away at the moment, "" if they may.
            now_s: The present.

        Raises:
            FencedError: If another scheduler has taken over.
            StaleWriteError: If the copy of the store is old; so is it with a TakenError.
        """
        if self._backend is None:
            return
        if cache is not self._cache:  # what was noted here may not have been stored
            self._cache = cache
            for ring in self._rings.values():
                ring.given = None
        self._keep_desks(cache, self._backend)
        in_turn = sorted(self._rings, key=lambda it: (-cache.jobs[it].priority, cache.jobs[it].submit_seq))
        for step in (self._look_at, self._let_grow):  # rings that stand still come before those that go on
            for job in in_turn:
                with cache.about(job, now_s, spoils=True, what="seating"):
                    try:
                        step(cache, self._rings[job], self._backend, against, now_s)
                    except BackendError as error:
                        log.warning("ring of job %s: %s", job, error)

    def close(self) -> None:
        """Let the rings do without a desk."""
        for ring in self._rings.values():
            ring.desk.close()
        self._rings.clear()

    def _keep_desks(self, cache: StateCache, backend: Seats) -> None:
        """Have a desk for each ring that runs, and for no other."""
        running = {job: row for job, row in cache.attempts.items() if self._is_ring(cache, row)}
        for job, ring in list(self._rings.items()):
            if job not in running or running[job].number != ring.row.number:
                self._rings.pop(job).desk.close()
        for job, row in running.items():
            if job not in self._rings:
                name = name_of(row.job_id, row.number)
                try:
                    self._rings[job] = _Ring(row, ask(partial(backend.desk, name, self._parts.wake)))
                except BackendError as error:
                    log.warning("ring of job %s: %s", job, error)

    def _is_ring(self, cache: StateCache, row: AttemptRow) -> bool:
        job = cache.jobs.get(row.job_id)
        runs = row.state is AttemptState.RUNNING and row.backend == self._parts.backend_name
        return runs and job is not None and cache.mirror.has(job.id) and is_switching(job.spec)

    def _look_at(self, cache: StateCache, ring: _Ring, backend: Seats, against: str, now_s: float) -> None:
        places = ask(partial(backend.places, ring.name))
        if places is None:
            return
        if ring.given is None:
            with self._parts.store.read() as tx:
                ring.given = replacements_of(tx, ring.row.job_id, ring.row.number)
        for row in self._unseen(ring, places):  # reserved by a scheduler that may not have come to say so
            ask(partial(backend.add, ring.name, row.rank, row.node, row.gpu))
        self._free_left(cache, ring, places, now_s)
        self._adopt(cache, ring, backend, places, now_s)
        if not against:
            self._fill(cache, ring, backend, now_s, grows=False)

    def _let_grow(self, cache: StateCache, ring: _Ring, backend: Seats, against: str, now_s: float) -> None:
        """Give a ring members that goes on without some, where they make it faster."""
        if ring.short and ring.given is not None and not against:
            self._fill(cache, ring, backend, now_s, grows=True)

    def _unseen(self, ring: _Ring, places: Sequence[MemberPlace]) -> list[ReplacementRow]:
        """Return what is reserved for a ring and not yet seen there."""
        return [row for row in ring.given or () if row.rank >= len(places)]

    def _free_left(self, cache: StateCache, ring: _Ring, places: Sequence[MemberPlace], now_s: float) -> None:
        """Give GPUs to others where no process of a ring is left, and none will be."""
        job, layout = ring.row.job_id, self._parts.layout
        held = cache.mirror.picks(job)
        # The ring may have been given a GPU again that it left before: of its ranks there the last one counts.
        is_left = {(it.node, it.gpu): it.is_left for it in places}
        is_left |= {(row.node, row.gpu): False for row in self._unseen(ring, places)}
        gone = [it for it in sorted(is_left) if is_left[it] and layout.has(*it) and layout.number(*it) in held]
        if not gone:
            return
        words = ", ".join(f"GPU {gpu} of {node}" for node, gpu in gone)
        event = self._event(cache, ring, LEFT, f"left {words}: no process of it is there any more", now_s)
        event = event._replace(data={"gpus": [[node, gpu] for node, gpu in gone]})
        self._parts.store.write(lambda tx: take_back(tx, job, ring.row.number, gone, event))
        cache.happens(now_s)
        for place in gone:
            cache.mirror.give_up(job, layout.number(*place))

    def _adopt(
        self, cache: StateCache, ring: _Ring, backend: Seats, places: Sequence[MemberPlace], now_s: float
    ) -> None:
        """Reserve GPUs that a ring has and the store does not know of, as after the restore of an older store."""
        layout, held = self._parts.layout, cache.mirror.picks(ring.row.job_id)
        for rank, it in enumerate(places):
            if it.is_left or not layout.has(it.node, it.gpu) or layout.number(it.node, it.gpu) in held:
                continue
            row = ReplacementRow(ring.row.job_id, ring.row.number, rank, it.node, it.gpu, now_s, {})
            event = self._event(cache, ring, FOUND, f"runs on GPU {it.gpu} of {it.node} too", now_s)
            try:
                self._parts.store.write(partial(give, row=row, event=event))
            except TakenError:
                log.error("ring of job %s: GPU %d of %s is another job's", ring.row.job_id, it.gpu, it.node)
                ask(partial(backend.retire, ring.name, [(it.node, it.gpu)], ANOTHERS))
            else:
                cache.is_torn = True  # the store is read anew

    def _fill(self, cache: StateCache, ring: _Ring, backend: Seats, now_s: float, *, grows: bool) -> None:
        """Give a ring free GPUs, one after the other, or say that there are none.

        Args:
            cache: What the scheduler knows.
            ring: The ring.
            backend: Of it.
            now_s: The present.
            grows: Whether for the seats that it goes on without; else for those that have become empty since.
        """
        want = ring.desk.want
        if want is None or not want.empty:
            return
        places = ask(partial(backend.places, ring.name))
        if places is None:
            return
        coming = len(self._unseen(ring, places))
        missing = stored_or_usual(cache.jobs[ring.row.job_id].spec).seats - sum(it.is_used for it in places) - coming
        missing = min(max(missing, 0), len(want.empty))
        ring.short = min(ring.short, missing)
        most = ring.short if grows else missing - ring.short
        for left in range(most, 0, -1):
            if want is None or len(want.empty) < missing:
                return
            at = len(want.empty) - missing  # somebody comes for those before
            seats = len(want.order) + at + (1 if grows else left)
            began_s = time.perf_counter()
            choice, why = self._choose(cache, ring, places, (want, want.empty[at], seats), now_s, grows=grows)
            if why:
                ring.short = missing
                self._refuse(cache, ring, want, why, now_s)
                return
            rank, took_s = len(places) + len(self._unseen(ring, places)), time.perf_counter() - began_s
            self._give(cache, ring, backend, rank, want, choice, took_s, now_s)
            missing, want = missing - 1, ring.desk.want
            ring.short = min(ring.short, missing)

    def _against_more(self, ring: _Ring, seats: int, now_s: float) -> str:
        """Return why a ring gets no GPU now, whether there is one or not; "" if it may.

        A script that kills its process would go through the whole cluster.
        """
        lately = [it for it in ring.given or () if 0.0 <= now_s - it.at_s < HOUR_S]
        most = max(seats, LEAST_IN_AN_HOUR)
        return f"it has had {most} others within an hour" if len(lately) >= most else ""

    def _choose(
        self, cache: StateCache, ring: _Ring, places: Sequence[MemberPlace], seat: tuple[Want, Empty, int],
        now_s: float, *, grows: bool,
    ) -> tuple[Choice, str]:  # fmt: skip
        """Choose a free GPU for a seat, and return why there is none.

        Those that the ring has left before come into question if there is no other, or if they were found faulty then
        and are well again: something is wrong with a GPU on which processes fail though nobody finds fault with it.
        """
        parts, job = self._parts, cache.jobs[ring.row.job_id]
        spec = stored_or_usual(job.spec)
        if why := self._against_more(ring, spec.seats, now_s):
            return NOBODY, why
        with parts.store.read() as tx:
            records, gpus = records_of(tx, job.id), list_gpus(tx)
        well_s = {(it.node, it.gpu): it.since_s for it in gpus if it.healthy}
        without = self._left_for_good(ring, places, well_s)
        free = free_for(cache.mirror, job.id, without)
        if not free.gpus.size:
            free = free_for(cache.mirror, job.id)
        around = Around(cache.mirror, parts.layout, parts.monitor.fleet.types, job.id, spec)
        inside = ring_of(around, *seat, records)
        site = cache.mirror.site
        fit = with_which_faster(site.cluster, inside, free) if grows else free
        if free.gpus.size and not fit.gpus.size:
            return NOBODY, "it would be faster with no free GPU"
        choice = choose_for(site.cluster, inside, fit, site.rules.replacement)
        return choice, "" if choice.gpu >= 0 else "no free GPU suits it"

    def _left_for_good(
        self, ring: _Ring, places: Sequence[MemberPlace], well_s: Mapping[tuple[str, int], float]
    ) -> list[int]:
        """Return the GPUs that a ring has left and that were not found faulty since it had them, and well again.

        Args:
            ring: The ring.
            places: All that it was given.
            well_s: Since when each GPU has been well that was faulty before.
        """
        had_s = {it.rank: it.at_s for it in ring.given or ()}
        left = [
            it
            for rank, it in enumerate(places)
            if not it.is_used and well_s.get((it.node, it.gpu), 0.0) <= had_s.get(rank, ring.row.opened_s)
        ]
        return [self._parts.layout.number(it.node, it.gpu) for it in left if self._parts.layout.has(it.node, it.gpu)]

    def _give(
        self, cache: StateCache, ring: _Ring, backend: Seats, rank: int, want: Want, choice: Choice, took_s: float,
        now_s: float,
    ) -> None:  # fmt: skip
        """Reserve a GPU for a ring, and let the backend start a member there."""
        assert ring.given is not None
        job, (node, gpu) = ring.row.job_id, self._parts.layout.place(choice.gpu)
        formula = next(name for name, it in FORMULAS.items() if it == cache.mirror.site.rules.replacement)
        choice_data = {**described(choice, want, formula, self._parts.layout), "took_s": round(took_s, 6)}
        row = ReplacementRow(job, ring.row.number, rank, node, gpu, now_s, choice_data)
        cause = f"GPU {gpu} of {node} takes an empty seat: {words_of_choice(choice, want, formula)}"
        data = {"rank": rank, "node": node, "gpu": gpu, **{it: choice_data[it] for it in ("formula", "average_s")}}
        event = self._event(cache, ring, TAKEN, cause, now_s)._replace(data=data)
        self._parts.store.write(lambda tx: give(tx, row, event))
        cache.happens(now_s)
        cache.mirror.claim(job, choice.gpu)
        ring.given.append(row)
        log.info("ring of job %s: %s", job, cause)
        ring.desk.say(Coming(-1, node, gpu))
        ask(partial(backend.add, ring.name, rank, node, gpu))

    def _refuse(self, cache: StateCache, ring: _Ring, want: Want, why: str, now_s: float) -> None:
        """Let a ring shrink at once, and tell people."""
        if ring.refused != want.generation and ring.desk.say(NoneComing(why)):
            ring.refused = want.generation
        if ring.told == want.generation:
            return
        ring.told = want.generation
        empty, seats = len(want.empty), len(want.empty) + len(want.order)
        cause = f"{empty} of {seats} seats stay empty, as {why}: the ring goes on without, and grows once a GPU is free"
        event = self._event(cache, ring, EMPTY, cause, now_s)._replace(data={"empty": empty, "seats": seats})
        log.warning("ring of job %s: %s", ring.row.job_id, cause)
        self._parts.store.write(partial(note, event=event))

    def _event(self, cache: StateCache, ring: _Ring, now: str, cause: str, now_s: float) -> NewEvent:
        return NewEvent(
            SEAT, WRITER, now_s, ring.row.job_id, ring.row.number, now=now, fence=cache.fence, cause=cause
        )  # fmt: skip
