"""Rings that run: their empty seats are filled from the free GPUs, and GPUs that they have left are freed.

`Seating.fill_seats` does it in each cycle of the scheduler. The leader has a connection to the coordinator of each ring
that runs. A ring that is short of members gets a free GPU before any job that waits. A GPU is reserved before the
backend starts a member on it, and freed after the backend has proven that the member is gone: wherever a scheduler is
killed, the next one finds which GPUs a ring holds.

If the nodes of its job are checked before use, a GPU is reserved, then checked, and only then assigned. A GPU that is
reserved, but neither assigned nor being checked, is freed.

Source: SPEC F5 to F10; docs/decisions/0015.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial

from ...cluster.files.errors import BackendError
from ...cluster.model.placement import Placement, Share
from ...ring.wire import MemberOffer, NoMemberOffer, SeatRequest, as_json
from ..backends.protocol import MemberPlace, call_backend
from ..mirror.vacant_seats import warm_up
from ..model.job import SCHEDULER_WRITER, NewEvent, ReservationRow
from ..model.job_spec import StoredJob, is_ring_job, stored_job_or_default
from ..model.states import AttemptState
from ..rules.attempts import Checks
from ..store.attempts import AttemptRow
from ..store.database import TakenError
from ..store.rings import (
    BACKUP,
    CHECKED,
    EMPTY,
    FOUND,
    HINT,
    LEFT,
    MOVED,
    REJECTED,
    RING_ENDED,
    RING_EVENT,
    SEAT_EVENT,
    SLOW,
    TAKEN,
    ReplacementRow,
    free_ring_gpus,
    give_ring_gpu,
    hold_ring_gpu,
    note_ring_event,
    replacements_of,
)
from .seat_choice import (
    BANDWIDTHS,
    MIN_GPUS_PER_HOUR,
    ChosenGpu,
    LiveRing,
    choose_backup,
    choose_gpu_for_seat,
    chosen_gpu_of,
    members_to_back_up,
    relieved_members,
    replacement_formula,
)
from .state_cache import Parts, StateCache

log = logging.getLogger(__name__)

FAULTY = "its GPU is out of service"
ANOTHERS = "its GPU is another job's"
CHECKED_S = 1.0  # that a ring waits for its links to be measured and a GPU to be checked, before it goes on without
CHECKS_UNFINISHED = "its checks were not brought to an end"


class Seating:
    """Fills the seats of each ring, as long as this scheduler leads.

    Args:
        parts: What the scheduler works with.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backend, self._runs_rings = parts.backend, parts.backend.capabilities.runs_rings
        self._rings: dict[str, LiveRing] = {}  # by job
        self._cache: StateCache | None = None
        self.is_measuring = False  # links of a ring were being measured in the last cycle, and GPUs wait for that

    def warm_up(self) -> None:
        """Let what a choice needs be compiled before there is a fault: a ring waits for it."""
        if self._runs_rings:
            warm_up(self._parts.site.cluster)

    def fill_seats(self, cache: StateCache, why_blocked: str, now_s: float) -> None:
        """Free what rings have left, and fill their empty seats.

        Args:
            cache: What the scheduler knows.
            why_blocked: Why no GPU may be assigned at the moment, "" if they may.
            now_s: The present.

        Raises:
            FencedError: If another scheduler has taken over.
            StaleWriteError: If the copy of the store is old; so is it with a TakenError.
        """
        if not self._runs_rings:
            return
        if cache is not self._cache:  # what was noted here may not have been stored
            self._cache = cache
            for ring in self._rings.values():
                ring.given = None
        self._connect_rings(cache)
        self.is_measuring = False
        in_turn = sorted(
            self._rings, key=lambda job: (-cache.table.jobs[job].priority, cache.table.jobs[job].submit_seq)
        )
        # Rings that stand still come before those that go on, and these before those that have all their members.
        for step in (self._refill_ring, self._grow_ring, self._add_backup):
            for job in in_turn:
                if cache.errors.is_resting(job, now_s):
                    continue
                with cache.isolated(job, now_s, spoils=True, action="seating"):
                    try:
                        step(cache, self._rings[job], why_blocked, now_s)
                    except BackendError as error:
                        log.warning("ring of job %s: %s", job, error)

    def close(self) -> None:
        """Close the connections to all rings."""
        for ring in self._rings.values():
            ring.connection.close()
        self._rings.clear()

    def _connect_rings(self, cache: StateCache) -> None:
        """Connect to each ring that runs, and to no other."""
        running = {job: row for job, row in cache.table.attempts.items() if self._is_running_ring(cache, row)}
        for job, ring in list(self._rings.items()):
            if job not in running or running[job].number != ring.row.number:
                self._rings.pop(job).connection.close()
        for job, row in running.items():
            if job not in self._rings:
                try:
                    self._rings[job] = LiveRing(
                        row, call_backend(self._backend.connect_to_ring, row.name, self._parts.wake)
                    )
                except BackendError as error:
                    log.warning("ring of job %s: %s", job, error)

    def _is_running_ring(self, cache: StateCache, row: AttemptRow) -> bool:
        runs = row.state is AttemptState.RUNNING and row.backend == self._parts.backend_name
        return runs and _is_ring_attempt(cache, row) and cache.mirror.has(row.job_id)

    def _refill_ring(self, cache: StateCache, ring: LiveRing, why_blocked: str, now_s: float) -> None:
        """Free the GPUs that a ring has left, assign those that passed their checks, and fill its empty seats."""
        self._keep_coordinated(cache, ring, now_s)
        places = call_backend(self._backend.ring_places, ring.row.name)
        if places is None:
            return
        is_new = ring.given is None
        if ring.given is None:
            with self._parts.store.read() as tx:
                ring.given = replacements_of(tx, ring.row.job_id, ring.row.number)
        self._resend_starting_members(ring, places)
        self._free_left_gpus(cache, ring, places, now_s)
        for words in ring.connection.hints():
            event = self._seat_event(cache, ring, HINT, words, now_s)._replace(kind=RING_EVENT)
            log.warning("ring of job %s: %s", ring.row.job_id, words)
            self._parts.store.write(partial(note_ring_event, event=event))
        if is_new:
            self._adopt_unknown_gpus(cache, ring, places, now_s)
        if why_blocked:
            return
        for gpu in list(ring.checked):
            self._assign_or_strike_off(cache, ring, places, gpu, now_s)
        self._fill_empty_seats(cache, ring, now_s, grows=False)

    def _keep_coordinated(self, cache: StateCache, ring: LiveRing, now_s: float) -> None:
        """Let another node run the coordinator of a ring, if that of the present one is lost."""
        if ring.connection.is_open:
            ring.answered_s = time.monotonic()
        elif self._backend.capabilities.moves_coordinators:
            silent_s = time.monotonic() - ring.answered_s
            node = call_backend(self._backend.move_coordinator, ring.row.name, silent_s)
            if not node:
                return
            ring.answered_s = time.monotonic()
            words = f"the coordinator is lost with its node: {node} runs it from here on"
            log.warning("ring of job %s: %s", ring.row.job_id, words)
            event = self._seat_event(cache, ring, MOVED, words, now_s)._replace(kind=RING_EVENT, data={"node": node})
            self._parts.store.write(partial(note_ring_event, event=event))

    def _resend_starting_members(self, ring: LiveRing, places: Sequence[MemberPlace]) -> None:
        """Repeat which members are starting: scheduler or coordinator may have been replaced since."""
        request = ring.connection.seat_request
        for row in self._unseen_members(ring, places):
            if request is not ring.reminded:
                ring.connection.send(MemberOffer(row.rank))
            call_backend(self._backend.add_to_ring, ring.row.name, row.rank, row.node, row.gpu)
        ring.reminded = request

    def _grow_ring(self, cache: StateCache, ring: LiveRing, why_blocked: str, now_s: float) -> None:
        """Give a ring members that goes on without some, where they make it faster."""
        if ring.short and ring.given is not None and not why_blocked and not self.is_measuring:
            self._fill_empty_seats(cache, ring, now_s, grows=True)

    def _unseen_members(self, ring: LiveRing, places: Sequence[MemberPlace]) -> list[ReplacementRow]:
        """Return what is reserved for a ring and not yet seen there."""
        return [row for row in ring.given or () if row.rank >= len(places)]

    def _free_left_gpus(self, cache: StateCache, ring: LiveRing, places: Sequence[MemberPlace], now_s: float) -> None:
        """Give GPUs to others where no process of a ring is left, and none will be."""
        job, layout = ring.row.job_id, self._parts.layout
        held = cache.mirror.gpus_of_job(job)
        # The ring may be given a GPU again that it left before: of its ranks there the last one counts.
        is_left = {(place.node, place.gpu): place.is_left for place in places}
        is_left |= {(row.node, row.gpu): False for row in self._unseen_members(ring, places)}
        is_left |= {layout.node_and_index(gpu): False for gpu in ring.checked}
        left = [
            place
            for place in sorted(is_left)
            if is_left[place] and layout.has(*place) and layout.number(*place) in held
        ]
        if left:
            words = ", ".join(f"GPU {gpu} of {node}" for node, gpu in left)
            event = self._seat_event(cache, ring, LEFT, f"left {words}: no process of it is there any more", now_s)
            self._free_gpus(cache, ring, left, event, now_s)
        for gpu in held:  # what another scheduler had reserved to be checked
            if layout.node_and_index(gpu) not in is_left:
                self._strike_off_gpu(cache, ring, gpu, CHECKS_UNFINISHED, now_s)

    def _free_gpus(
        self, cache: StateCache, ring: LiveRing, places: Sequence[tuple[str, int]], event: NewEvent, now_s: float
    ) -> None:
        """Let others have GPUs that were reserved for a ring."""
        job = ring.row.job_id
        event = event._replace(data={"gpus": [[node, gpu] for node, gpu in places]})
        self._parts.store.write(lambda tx: free_ring_gpus(tx, job, ring.row.number, places, event))
        cache.advance_mirror(now_s)
        for place in places:
            cache.mirror.give_up(job, self._parts.layout.number(*place))

    def _strike_off_gpu(self, cache: StateCache, ring: LiveRing, gpu: int, why: str, now_s: float) -> None:
        """Give up a GPU that was to be the ring's: no process of it ever was there."""
        place = self._parts.layout.node_and_index(gpu)
        cause = f"GPU {place[1]} of {place[0]} takes no seat: {why}"
        log.warning("ring of job %s: %s", ring.row.job_id, cause)
        self._free_gpus(cache, ring, [place], self._seat_event(cache, ring, REJECTED, cause, now_s), now_s)

    def _adopt_unknown_gpus(
        self, cache: StateCache, ring: LiveRing, places: Sequence[MemberPlace], now_s: float
    ) -> None:
        """Reserve GPUs that a ring has and the store does not know of, as after the restore of an older store.

        What a ring reports comes from its job. So it gets no more than a ring can have, and none for a rank that the
        store knows to be elsewhere.
        """
        layout, held = self._parts.layout, cache.mirror.gpus_of_job(ring.row.job_id)
        spec = stored_job_or_default(cache.table.jobs[ring.row.job_id].spec)
        left = spec.all_gpus + max(spec.seats, MIN_GPUS_PER_HOUR) - len(held)
        known = {row.rank for row in ring.given or ()}
        for rank, place in enumerate(places):
            node, gpu = place.node, place.gpu
            if place.is_left or not layout.has(node, gpu) or layout.number(node, gpu) in held:
                continue
            if rank in known or left <= 0:
                log.error("ring of job %s: rank %d cannot be on GPU %d of %s", ring.row.job_id, rank, gpu, node)
                continue
            left -= 1
            row = ReplacementRow(ring.row.job_id, ring.row.number, rank, node, gpu, now_s, {})
            event = self._seat_event(cache, ring, FOUND, f"runs on GPU {gpu} of {node} too", now_s)
            try:
                self._parts.store.write(partial(give_ring_gpu, row=row, event=event))
            except TakenError:
                log.error("ring of job %s: GPU %d of %s is another job's", ring.row.job_id, gpu, node)
                call_backend(self._backend.retire_members, ring.row.name, [(node, gpu)], ANOTHERS)
            else:
                cache.is_incomplete = True  # the store is read anew

    def _assign_or_strike_off(
        self, cache: StateCache, ring: LiveRing, places: Sequence[MemberPlace], gpu: int, now_s: float
    ) -> None:
        """Give a ring a GPU that has passed its checks, and strike one off that has not."""
        job, (node, index) = cache.table.jobs[ring.row.job_id], self._parts.layout.node_and_index(gpu)
        found = self._parts.checks.check_seat(ring.row, job, Share(node, (index,)), self._parts.store)
        if found.checks is Checks.RUN:
            return
        chosen, why = ring.checked.pop(gpu), found.found
        if gpu in {*cache.health.faulty, *cache.health.closed}:
            why = why or "it went out of service"
        spec, request = stored_job_or_default(job.spec), ring.connection.seat_request
        lacking = self._missing_gpus(ring, request, spec, places) + len(members_to_back_up(request, spec))
        if lacking <= len(ring.checked):
            why = why or "the seat is filled"
        if why:
            self._strike_off_gpu(cache, ring, gpu, why, now_s)
        else:
            self._assign_gpu(cache, ring, places, chosen, now_s, is_held=True)

    def _missing_gpus(
        self, ring: LiveRing, request: SeatRequest | None, spec: StoredJob, places: Sequence[MemberPlace]
    ) -> int:  # fmt: skip
        """Return how many GPUs a ring lacks for its seats; what is checked for it may never be its.

        It must be compared with figures of the same request: another one may arrive at any moment.
        """
        has = sum(place.is_used for place in places) + len(self._unseen_members(ring, places))
        return spec.seats + relieved_members(request, spec) - has

    def _fill_empty_seats(self, cache: StateCache, ring: LiveRing, now_s: float, *, grows: bool) -> None:
        """Assign free GPUs to a ring, one after the other, or report that there are none.

        Args:
            cache: What the scheduler knows.
            ring: The ring.
            now_s: The present.
            grows: Whether for the seats that it goes on without; else for those that have become empty since.
        """
        request = ring.connection.seat_request
        if request is None or not request.empty:
            ring.short = ring.short if request is None else 0  # without a request nothing has changed
            return
        places = call_backend(self._backend.ring_places, ring.row.name)
        if places is None:
            return
        spec = stored_job_or_default(cache.table.jobs[ring.row.job_id].spec)
        missing = self._missing_gpus(ring, request, spec, places) - len(ring.checked)
        missing = min(max(missing, 0), len(request.empty))
        ring.short = min(ring.short, missing)
        most = ring.short if grows else missing - ring.short
        for left in range(most, 0, -1):
            if request is None or len(request.empty) < missing:
                return
            at = len(request.empty) - missing  # the seats before it are about to be filled
            seats = len(request.order) + at + (1 if grows else left)
            began_s = time.monotonic()
            seat = request, request.empty[at], seats
            found = choose_gpu_for_seat(self._parts, cache, ring, places, seat, now_s, grows=grows)
            if found is None or self.is_measuring:  # earlier seats come first, and no other seat may take their GPU
                self.is_measuring, ring.waits_since_s = True, ring.waits_since_s or began_s
                break
            began_s, ring.waits_since_s = ring.waits_since_s or began_s, 0.0
            if isinstance(found, str):
                ring.short = missing
                self._let_ring_shrink(cache, ring, request, found, now_s)
                return
            choice, links = found
            chosen = chosen_gpu_of(choice, links, request, replacement_formula(cache), self._parts.layout, began_s)
            self._assign_or_check(cache, ring, places, chosen, now_s)
            missing, request = missing - 1, ring.connection.seat_request
            ring.short = min(ring.short, missing)
        is_late = any(time.monotonic() - checked.began_s > CHECKED_S for checked in ring.checked.values())
        if is_late and request and ring.connection.seat_request:
            self._let_ring_shrink(cache, ring, request, "a GPU is checked first", now_s)

    def _add_backup(self, cache: StateCache, ring: LiveRing, why_blocked: str, now_s: float) -> None:
        """Give a ring a GPU for a member that computes in place of a slow one, or report why there is none."""
        request, spec = ring.connection.seat_request, stored_job_or_default(cache.table.jobs[ring.row.job_id].spec)
        slow = members_to_back_up(request, spec)
        if why_blocked or request is None or request.empty or not slow or ring.given is None:
            return
        places = call_backend(self._backend.ring_places, ring.row.name)
        if places is None:
            return
        lacking = self._missing_gpus(ring, request, spec, places) + len(slow) - len(ring.checked)
        if not 0 < lacking <= len(slow):
            return
        found = choose_backup(self._parts, cache, ring, request, places, slow, len(slow) - lacking, now_s)
        if found is None or self.is_measuring:
            self.is_measuring = True
        elif isinstance(found, ChosenGpu):
            self._assign_or_check(cache, ring, places, found, now_s)
        elif ring.reported_slow != (members := tuple(seat.member for seat in slow)):
            ring.reported_slow, member = members, slow[-lacking].member
            node = request.nodes.get(str(member), "?")
            cause = f"all wait for member {member} on {node}, and it gets no backup: {found}"
            event = self._seat_event(cache, ring, SLOW, cause, now_s)._replace(data={"member": member})
            self._parts.store.write(partial(note_ring_event, event=event))

    def _assign_or_check(
        self, cache: StateCache, ring: LiveRing, places: Sequence[MemberPlace], chosen: ChosenGpu,
        now_s: float,
    ) -> None:  # fmt: skip
        if self._parts.checks.are_wanted(stored_job_or_default(cache.table.jobs[ring.row.job_id].spec)):
            self._reserve_for_checks(cache, ring, chosen, now_s)
        else:
            self._assign_gpu(cache, ring, places, chosen, now_s)

    def _reserve_for_checks(self, cache: StateCache, ring: LiveRing, chosen: ChosenGpu, now_s: float) -> None:
        """Reserve a GPU that is to be checked before the ring gets it."""
        job, (node, gpu) = ring.row.job_id, self._parts.layout.node_and_index(chosen.gpu)
        row = ReservationRow(node, gpu, job, ring.row.number, now_s)
        cause = f"GPU {gpu} of {node} is checked before it {_purpose_words(chosen)}"
        event = self._seat_event(cache, ring, CHECKED, cause, now_s)
        event = event._replace(data={"node": node, "gpu": gpu})
        self._parts.store.write(lambda tx: hold_ring_gpu(tx, row, event))
        cache.advance_mirror(now_s)
        cache.mirror.claim(job, chosen.gpu)
        ring.checked[chosen.gpu] = chosen
        self._parts.checks.check_seat(ring.row, cache.table.jobs[job], Share(node, (gpu,)), self._parts.store)

    def _assign_gpu(
        self, cache: StateCache, ring: LiveRing, places: Sequence[MemberPlace], chosen: ChosenGpu,
        now_s: float, *, is_held: bool = False,
    ) -> None:  # fmt: skip
        """Reserve a GPU for a ring, and let the backend start a member there."""
        assert ring.given is not None
        job, (node, gpu) = ring.row.job_id, self._parts.layout.node_and_index(chosen.gpu)
        rank = len(places) + len(self._unseen_members(ring, places))
        row = ReplacementRow(job, ring.row.number, rank, node, gpu, now_s, chosen.choice)
        cause = f"GPU {gpu} of {node} {_purpose_words(chosen)}: {chosen.words}"
        data = {"rank": rank, "node": node, "gpu": gpu}
        data |= {name: chosen.choice[name] for name in ("formula", "average_s")}
        data |= {name: chosen.choice["candidates"][0][name] for name in BANDWIDTHS}
        now = BACKUP if "backup_for" in chosen.choice else TAKEN
        event = self._seat_event(cache, ring, now, cause, now_s)._replace(data=data)
        self._parts.store.write(lambda tx: give_ring_gpu(tx, row, event, is_held=is_held))
        if not is_held:
            cache.advance_mirror(now_s)
            cache.mirror.claim(job, chosen.gpu)
        ring.given.append(row)
        log.info("ring of job %s: %s", job, cause)
        ring.connection.send(MemberOffer(rank))
        call_backend(self._backend.add_to_ring, ring.row.name, rank, node, gpu)

    def _let_ring_shrink(self, cache: StateCache, ring: LiveRing, request: SeatRequest, why: str, now_s: float) -> None:
        """Let a ring shrink at once, and report it."""
        if ring.refused != request.generation and ring.connection.send(NoMemberOffer(why)):
            ring.refused = request.generation
        if ring.reported == request.generation:
            return
        ring.reported = request.generation
        empty, seats = len(request.empty), len(request.empty) + len(request.order)
        cause = f"{empty} of {seats} seats stay empty, as {why}: the ring goes on without, and grows once a GPU is free"
        event = self._seat_event(cache, ring, EMPTY, cause, now_s)._replace(data={"empty": empty, "seats": seats})
        log.warning("ring of job %s: %s", ring.row.job_id, cause)
        self._parts.store.write(partial(note_ring_event, event=event))

    def _seat_event(self, cache: StateCache, ring: LiveRing, now: str, cause: str, now_s: float) -> NewEvent:
        return NewEvent(
            SEAT_EVENT, SCHEDULER_WRITER, now_s, ring.row.job_id, ring.row.number, now=now, fence=cache.fence,
            cause=cause
        )  # fmt: skip


def _purpose_words(chosen: ChosenGpu) -> str:
    """Return what a GPU is for, for people."""
    member = chosen.choice.get("backup_for")
    return "takes an empty seat" if member is None else f"is the backup of member {member}, which all others wait for"


def held_placement(cache: StateCache, row: AttemptRow) -> Placement:
    """Return the GPUs that the last attempt of a job holds: a ring gives some up and gets others while it runs."""
    held = cache.mirror.gpus_of_job(row.job_id) if cache.mirror.has(row.job_id) else ()
    job = cache.table.jobs.get(row.job_id)
    # The GPUs that a ring began with may be another job's by now, also when it holds none.
    return cache.parts.layout.placement(held) if held or (job is not None and is_ring_job(job.spec)) else row.placement


def _is_ring_attempt(cache: StateCache, row: AttemptRow) -> bool:
    """Return whether an attempt is a ring, and the backend runs rings."""
    job = cache.table.jobs.get(row.job_id)
    return job is not None and is_ring_job(job.spec) and cache.parts.backend.capabilities.runs_rings


def survives_without(cache: StateCache, row: AttemptRow, nodes: Sequence[str]) -> bool:
    """Return whether an attempt goes on without some nodes: a ring does on the others, if it is coordinated there."""
    if not _is_ring_attempt(cache, row):
        return False
    if cache.parts.backend.capabilities.moves_coordinators:
        return not {share.node for share in held_placement(cache, row)} <= {*nodes}
    return row.placement[0].node not in nodes


def ranks_of_ring(cache: StateCache, row: AttemptRow) -> tuple[tuple[str, ...], frozenset[int]]:
    """Return the nodes of the ranks that joined the ring of an attempt, and all its ranks without a process.

    A process that was lost with its node reports no end. Nothing is returned where that is not known.
    """
    if not _is_ring_attempt(cache, row):
        return (), frozenset()
    try:
        places = call_backend(cache.parts.backend.ring_places, row.name) or ()
    except BackendError:
        return (), frozenset()
    first = sum(len(share.gpus) for share in row.placement)
    empty = frozenset(rank for rank, place in enumerate(places) if not place.is_used)
    return tuple(place.node for place in places[first:]), empty


def store_ring_end(cache: StateCache, row: AttemptRow, now_s: float) -> None:
    """Store the last state of the ring of an attempt that ended, and its GPUs: the backend forgets it."""
    if not _is_ring_attempt(cache, row):
        return
    backend = cache.parts.backend
    try:
        report = call_backend(backend.ring_report, row.name)
        places = call_backend(backend.ring_places, row.name)
    except BackendError as error:
        log.warning("attempt %s: how its ring ended is not known: %s", row.name, error)
        return
    if report is None:
        return
    filled, recoveries = sum(member >= 0 for member in report.order), len(report.recoveries) - 1
    words = f"{filled} of {report.seats} seats, step {report.step}, {recoveries} recoveries"
    held = [[share.node, gpu] for share in held_placement(cache, row) for gpu in share.gpus]
    data = {"report": as_json(report), "places": [list(place) for place in places or ()], "gpus": held}
    cache.batch.add_event(
        NewEvent(RING_EVENT, SCHEDULER_WRITER, now_s, row.job_id, row.number, now=RING_ENDED, cause=words, data=data)
    )


def retire_faulty_members(cache: StateCache, row: AttemptRow) -> bool:
    """Let the members on faulty GPUs leave the ring of an attempt; return whether it goes on without them, or may."""
    if row.state is not AttemptState.RUNNING or not _is_ring_attempt(cache, row):
        return False
    if not stored_job_or_default(cache.table.jobs[row.job_id].spec).seats:
        return False
    faulty, layout = set(cache.health.faulty), cache.parts.layout
    places = [layout.node_and_index(gpu) for gpu in layout.numbers(held_placement(cache, row)) if gpu in faulty]
    try:
        return call_backend(cache.parts.backend.retire_members, row.name, places, FAULTY)
    except BackendError as error:
        # Like an attempt that cannot be reached: it runs on, and is polled again in the next cycle.
        log.warning("attempt %s: %s", row.name, error)
        return True
