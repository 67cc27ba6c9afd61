"""What pages show: the cluster, a job, the policy, folded events, and plain output."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup
from sqlalchemy import Connection

from ...cluster.model.placement import Placement
from ..api.jobs import ids_in_queue_order
from ..logs import BLOCK_BYTES, Read, offset_near_end
from ..model.gpu_index import Layout, QuarantineEntry
from ..model.job import JobRow
from ..model.job_spec import UnreadableSpecError, stored_job, stored_job_or_default
from ..model.states import FINAL, AttemptState, JobState
from ..service.queue_now import PENDING_STATES, Queue, why_jobs_wait
from ..service.service import Service
from ..store.attempts import (
    SAVED,
    AttemptRow,
    CheckpointRow,
    DecisionRow,
    GpuState,
    OccupiedGpu,
    attempts_of,
    checkpoints_of,
    last_checkpoint_events,
    last_decisions,
    occupied_gpus,
)
from ..store.events import EventRow, last_events
from ..store.jobs import count_jobs, get_jobs, jobs_in_states
from ..store.nodes import NodeRow, faulty_gpus, list_nodes, open_quarantines, quarantined_gpus, why_closed

ACTIVE_STATES = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
WAITING_STATES = (JobState.QUEUED, JobState.HELD)
MAX_JOB_ROWS = 50  # of each table
GPU_LETTERS = {
    GpuState.FREE: "", GpuState.STARTING: "S", GpuState.RUNNING: "R", GpuState.DRAINING: "D",
    GpuState.OUT: "X",
}  # fmt: skip
GPU_STYLES = {state: state.replace(" ", "-") for state in GpuState}
ROOMY, MEDIUM = 64, 512  # most GPUs that are drawn large, and not small


class GpuBlock(NamedTuple):
    """Neighbouring GPUs of a node in the same state, of the same job."""

    first: int  # index on the node
    gpus: int
    state: GpuState
    job_id: str  # "" for none
    job: str
    words: str


class NodeCard(NamedTuple):
    """A node."""

    name: str
    kind: str  # node type
    words: str  # why no job starts there, "" if jobs do
    free: int
    gpus: int
    blocks: tuple[GpuBlock, ...]


class ClusterView(NamedTuple):
    """The cluster as a whole."""

    nodes: Sequence[NodeCard]
    gpus: Mapping[GpuState, int]
    jobs: Mapping[JobState, int]
    active: Sequence[JobRow]
    waiting: Sequence[JobRow]  # in the order of the queue, then those outside of it
    first: JobRow | None  # of the queue
    size: str  # how large its GPUs are drawn
    kinds: int  # of nodes
    quarantine: Sequence[QuarantineEntry]  # open quarantines

    @property
    def all_gpus(self) -> int:
        """GPUs of the cluster."""
        return sum(self.gpus.values())

    @property
    def sentence(self) -> str:
        """Its state, in a sentence."""
        running, free = self.jobs[JobState.RUNNING], self.gpus[GpuState.FREE]
        jobs = "1 job" if running == 1 else f"{running} jobs"
        return f"{jobs} running, {self.jobs[JobState.QUEUED]} waiting, {free} of {self.all_gpus} GPUs free."


def cluster_view(tx: Connection, layout: Layout, types: Mapping[str, str], queue: Queue) -> ClusterView:
    """Return the view of the cluster; `types` has the node type of each node."""
    occupied = {(gpu.node, gpu.gpu): gpu for gpu in occupied_gpus(tx)}
    faulty, broken = faulty_gpus(tx), quarantined_gpus(tx, layout.nodes)
    words = {row.name: _node_words(row) for row in list_nodes(tx)}
    nodes = [
        _node_view(
            name, types[name], words.get(name, ""), list(_gpu_states(name, gpus, occupied, faulty, broken, words))
        )
        for name, gpus in layout.nodes.items()
    ]
    gpus = Counter(dict.fromkeys(GpuState, 0))
    for node in nodes:
        for block in node.blocks:
            gpus[block.state] += block.gpus
    total = gpus.total()
    size = "roomy" if total <= ROOMY else "medium" if total <= MEDIUM else "dense"
    ids = ids_in_queue_order(tx, WAITING_STATES, None, None, queue)[:MAX_JOB_ROWS]
    rows = {row.id: row for row in get_jobs(tx, ids)}
    waiting = [rows[job] for job in ids if job in rows]
    first = waiting[0] if waiting and waiting[0].id in queue.places else None
    return ClusterView(
        nodes, gpus, count_jobs(tx), jobs_in_states(tx, ACTIVE_STATES, MAX_JOB_ROWS), waiting, first, size,
        len(set(types.values())), open_quarantines(tx),
    )  # fmt: skip


def _node_words(row: NodeRow) -> str:
    """Return why no job starts on a node, and what was found there; "" if jobs do."""
    return ": ".join(text for text in (why_closed(row), row.found) if text)


_Doing = tuple[GpuState, str, str]  # state, id and name of the job


def _gpu_states(
    node: str, gpus: int, occupied: Mapping[tuple[str, int], OccupiedGpu], faulty: Collection[tuple[str, int]],
    broken: Collection[tuple[str, int]], words: Mapping[str, str],
) -> Iterator[_Doing]:  # fmt: skip
    for place in ((node, gpu) for gpu in range(gpus)):
        held = occupied.get(place)
        empty = GpuState.OUT if words.get(node) or place in broken else GpuState.FREE
        state = GpuState.OUT if place in faulty else empty if held is None else held.state
        yield (state, "", "") if held is None else (state, held.job_id, held.job)


def _node_view(name: str, kind: str, words: str, states: Sequence[_Doing]) -> NodeCard:
    blocks, first = [], 0
    for (state, job_id, job), same in groupby(states):
        gpus = len(list(same))
        which = f"GPU {first}" if gpus == 1 else f"GPUs {first} to {first + gpus - 1}"
        text = f"{which}: {state}, job {job}" if job_id else f"{which}: {state}"
        blocks.append(GpuBlock(first, gpus, state, job_id, job, text))
        first += gpus
    free = sum(block.gpus for block in blocks if block.state is GpuState.FREE)
    return NodeCard(name, kind, words, free, first, tuple(blocks))


MIN_EVENT_LINES = 100  # lines of a page at least, where so much has happened
MAX_EVENT_READS = 20  # of `MIN_EVENT_LINES` events each


class FoldedEvent(NamedTuple):
    """A line."""

    event: EventRow  # the last of those that it stands for
    events: int

    @property
    def cause(self) -> str:
        """Its cause, in words."""
        return self.event.cause if self.events == 1 else f"{self.events} checkpoints; the last: {self.event.cause}"


def folded_events(events: Iterable[EventRow]) -> list[FoldedEvent]:
    """Return lines, the last first: one an event, or one for checkpoints of an attempt in a row."""
    lines: list[FoldedEvent] = []
    open_at: dict[str | None, int] = {}  # where each job's line stands to which another checkpoint belongs
    for event in events:
        at = open_at.get(event.job_id)
        if event.kind == SAVED and at is not None and lines[at].event.number == event.number:
            lines[at] = lines[at]._replace(events=lines[at].events + 1)
            continue
        open_at.pop(event.job_id, None)
        if event.kind == SAVED:
            open_at[event.job_id] = len(lines)
        lines.append(FoldedEvent(event, 1))
    return lines


def page_of_events(
    read: Callable[[int | None], list[EventRow]], before_seq: int | None
) -> tuple[list[FoldedEvent], int | None]:
    """Return a page of lines, and the number of the event before which the next one begins, None if there is none.

    Args:
        read: Returns `ROWS` events before the one with a number, the last first.
        before_seq: Number of the event before which the page begins, None for the newest.
    """
    events: list[EventRow] = []
    for _ in range(MAX_EVENT_READS):
        more = read(before_seq)
        events += more
        if len(more) < MIN_EVENT_LINES:
            return folded_events(events), None
        before_seq = more[-1].seq
        if len(lines := folded_events(events)) >= MIN_EVENT_LINES:
            return lines, before_seq
    return folded_events(events), before_seq


def with_checkpoints(events: Sequence[EventRow], saved: Sequence[tuple[EventRow, int]]) -> list[FoldedEvent]:
    """Return the lines of a job, the last first; `saved` has the last checkpoint of each attempt, and their number."""
    lines = [FoldedEvent(event, 1) for event in events] + [FoldedEvent(*each) for each in saved]
    return sorted(lines, key=lambda line: line.event.seq, reverse=True)


_UNITS = (  # seconds and name of the first unit, of the second, its digits, and most of the first
    (60, "min", 1, "s", 2, 60),
    (3600, "h", 60, "min", 2, 24),
    (86_400, "d", 3600, "h", 1, 1 << 40),
)


def duration_text(seconds: float | None, *, exact: bool = True) -> str:
    """Return a duration in its two largest units, as "4 min 12 s"; "" for none. If `exact`, 0 s is written, too."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    size, large, part, small, digits = next(unit for unit in _UNITS if whole < unit[0] * unit[5])[:5]
    rest = whole % size // part
    return f"{whole // size} {large}" + (f" {rest:0{digits}d} {small}" if exact or rest else "")


def milliseconds_text(seconds: float) -> str:
    """Return a short time, such as "0.42 ms" or "87 ms"."""
    ms = 1000.0 * seconds
    return f"{ms:.2f} ms" if ms < 1.0 else f"{ms:.1f} ms" if ms < 10.0 else f"{ms:,.0f} ms"


def time_of(at_s: float) -> datetime:
    """Return a moment in UTC."""
    return datetime.fromtimestamp(at_s, UTC)


def moment(at_s: float | None) -> Markup:
    """Return a moment as an element that a script may show in the reader's own time zone; a dash for none."""
    if at_s is None:
        return Markup("&ndash;")
    at = time_of(at_s)
    short, exact = at.strftime("%d %b %H:%M:%S"), at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Markup('<time class="moment" datetime="{0}" title="{0}">{1}</time>').format(exact, short)


def elapsed(since_s: float, now_s: float) -> Markup:
    """Return the time since a moment as an element that a script keeps up to date."""
    return Markup('<span class="elapsed" data-since="{:.3f}">{}</span>').format(since_s, duration_text(now_s - since_s))


def sentence(text: str) -> str:
    """Return words as a sentence."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


def indices_text(indices: tuple[int, ...]) -> str:
    """Return indices with runs of neighbours drawn together, such as "0-3, 6"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ", ".join("-".join(map(str, run)) for run in runs)


def placement_text(placement: Placement | None) -> str:
    """Return GPUs by node, such as "rack0-node1: 0-3"; "wait" for none."""
    if placement is None:
        return "wait"
    return "; ".join(f"{share.node}: {indices_text(share.gpus)}" for share in placement)


MAX_SHOWN_DECISIONS = 50
MAX_SHOWN_CHECKPOINTS = 10
MAX_JOB_EVENTS = 2000  # the last


class JobView(NamedTuple):
    """A job with all that happened to it."""

    job: JobRow
    command: str
    model: str
    attempts: list[AttemptRow]
    events: list[EventRow]  # all but those of checkpoints
    lines: list[FoldedEvent]  # all events, the last first
    decisions: list[DecisionRow]  # the last first
    checkpoints: list[CheckpointRow]  # the newest first
    waits_for: str  # why it waits, "" if it does not

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.job.state in FINAL

    @property
    def is_closed(self) -> bool:
        """Whether nothing will change any more."""
        return self.is_over and all(row.state is AttemptState.CLOSED for row in self.attempts)


def job_view(tx: Connection, row: JobRow, service: Service) -> JobView:
    """Return the view of a job."""
    events = last_events(tx, MAX_JOB_EVENTS, job_id=row.id, without=SAVED)[::-1]
    return JobView(
        row,
        _command_text(row.spec),
        stored_job_or_default(row.spec).model,
        attempts_of(tx, row.id),
        events,
        with_checkpoints(events, last_checkpoint_events(tx, row.id)),
        last_decisions(tx, MAX_SHOWN_DECISIONS, row.id),
        checkpoints_of(tx, row.id, MAX_SHOWN_CHECKPOINTS),
        _why_waits(tx, row, service),
    )


def _command_text(spec: Mapping[str, object]) -> str:
    try:
        return shlex.join(stored_job(spec).command)
    except UnreadableSpecError:
        return ""


def _why_waits(tx: Connection, row: JobRow, service: Service) -> str:
    """Return why a job waits, and its place in the queue, in the words of the API."""
    if row.state not in PENDING_STATES:
        return ""
    waiting = why_jobs_wait(tx, [row], service.queue.read(tx, service.now_s()))[row.id]
    place = "" if waiting.position is None else f"Number {waiting.position} in the queue: "
    return sentence(f"{place}{waiting.reason}")


PER_DECADE = 5  # bars
HISTOGRAM_DECADES = (-5, 1)  # 10 µs to 10 s


class HistogramBar(NamedTuple):
    """A bar of the histogram."""

    x: float  # percent of the width
    width: float
    height: float  # percent of the height
    decisions: int
    from_s: float
    to_s: float


class MissLine(NamedTuple):
    """Misses of one kind."""

    kind: str  # as `Miss` has them, or as another version wrote it
    decisions: int
    last_s: float
    text: str  # of the last


class PolicyView(NamedTuple):
    """The last decisions as a whole."""

    decisions: Sequence[DecisionRow]  # the last first
    took_s: Sequence[tuple[str, float]]  # percentiles by name
    columns: Sequence[HistogramBar]
    marks: Sequence[tuple[float, str]]  # of the axis: percent and label
    deadline_x: float  # percent
    by: Sequence[tuple[str, int]]
    misses: Sequence[MissLine]
    answered: int  # decisions with a usable answer of the policy
    agreed: int  # of these, with the same answer of the heuristic


def policy_view(decisions: Sequence[DecisionRow], deadline_s: float) -> PolicyView:
    """Return the view of the policy by the last decisions, the last first."""
    took = sorted(row.took_s for row in decisions)
    by = Counter(str(row.explanation.get("decided_by") or "?") for row in decisions)
    agrees = [row.explanation["agrees"] for row in decisions if row.explanation.get("agrees") is not None]
    return PolicyView(
        decisions, _percentiles(took), _histogram_bars(took), _axis_marks(), _x_of_time(deadline_s), by.most_common(),
        _miss_lines(decisions), len(agrees), sum(map(bool, agrees)),
    )  # fmt: skip


def _percentiles(took: Sequence[float]) -> list[tuple[str, float]]:
    if not took:
        return []
    return [(name, took[min(len(took) - 1, math.ceil(share * len(took)) - 1)])
            for name, share in (("median", 0.5), ("95 %", 0.95), ("99 %", 0.99), ("longest", 1.0))]  # fmt: skip


def _x_of_time(took_s: float) -> float:
    low, high = HISTOGRAM_DECADES
    return 100.0 * (min(max(math.log10(max(took_s, 1e-12)), low), high) - low) / (high - low)


def _histogram_bars(took: Sequence[float]) -> list[HistogramBar]:
    low, high = HISTOGRAM_DECADES
    bars = (high - low) * PER_DECADE
    counts = Counter(min(bars - 1, int(_x_of_time(each) * bars / 100.0)) for each in took)
    most, width = max(counts.values(), default=1), 100.0 / bars
    return [
        HistogramBar(width * bar, width, 100.0 * counts[bar] / most, counts[bar],
               10.0 ** (low + bar / PER_DECADE), 10.0 ** (low + (bar + 1) / PER_DECADE))
        for bar in sorted(counts)
    ]  # fmt: skip


def _axis_marks() -> list[tuple[float, str]]:
    labels = ("10 µs", "0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s")
    return [
        (_x_of_time(10.0**power), label)
        for power, label in zip(range(HISTOGRAM_DECADES[0], HISTOGRAM_DECADES[1] + 1), labels, strict=True)
    ]


def _miss_lines(decisions: Sequence[DecisionRow]) -> list[MissLine]:
    counts: Counter[str] = Counter()
    last: dict[str, tuple[float, str]] = {}
    for row in decisions:
        if row.explanation.get("kind"):
            kind = str(row.explanation["kind"])
            counts[kind] += 1
            last.setdefault(kind, (row.at_s, str(row.explanation.get("policy_error", ""))))
    return [MissLine(kind, count, *last[kind]) for kind, count in counts.most_common()]


SHOWN_OUTPUT_BYTES = BLOCK_BYTES  # shown at first
MAX_OUTPUT_BYTES = 256 << 10  # read at once when following

# Escape sequences: CSI, then strings (OSC, DCS, SOS, PM, APC) up to their end, then all two-character ones.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
# Control characters but tab and newline, and the marks that turn the direction of text round.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CUT_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]{0,256}\x1b?|[ -/]*)\Z")


class OutputPart(NamedTuple):
    """A piece of output."""

    text: str
    offset: int  # where to go on
    is_cut: bool = False  # something stands before it


def plain_text(text: str) -> str:
    """Return text without escape sequences and control characters; of a line that was overwritten, its last form.

    A line that goes on at the beginning of the text, or after its end, stays a line of its own.
    """
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    shown = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    begins, ends = lines[0].startswith("\r"), lines[-1].endswith("\r")
    return _CONTROLS.sub("", "\n" * begins + shown + "\n" * ends)


def whole_characters(data: bytes) -> bytes:
    """Return bytes without a character or an escape sequence that is cut off at their end."""
    found = _CUT_ESCAPE.search(data, max(0, len(data) - 512))
    data = data if found is None else data[: found.start()]
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < needs else data
    return data


def part_after(read: Read, offset: int, *, is_over: bool) -> OutputPart:
    """Return the output behind an offset; if it `is_over`, all of it, as nothing follows."""
    data, after = read(offset, MAX_OUTPUT_BYTES)
    kept = data if is_over else whole_characters(data)
    return OutputPart(plain_text(kept.decode("utf-8", "replace")), after - (len(data) - len(kept)))


def last_part(read: Read, *, is_over: bool) -> OutputPart:
    """Return the last part of an output, from the beginning of a line on."""
    begin = max(0, offset_near_end(read) - SHOWN_OUTPUT_BYTES)
    data, after = read(begin, 4 * SHOWN_OUTPUT_BYTES)
    cut = begin > 0
    if cut:
        data = data[data.find(b"\n") + 1 :]
    kept = data if is_over else whole_characters(data)
    return OutputPart(plain_text(kept.decode("utf-8", "replace")), after - (len(data) - len(kept)), cut)
