"""Decisions in files, and what another policy would have decided with the same past.

Source: SPEC R9.
"""

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...agents.protocol import Policy
from ...cluster.files.errors import InputError, PluginError
from ...cluster.files.input_problems import open_text
from ..mirror.cluster_mirror import ROW, ClusterMirror, ExpectedStart, MirrorCall
from ..mirror.journal import DECISION_CALLS, ForeignJournalError, decode_record, record_to_json
from ..policy_host.messages import StoredRecord
from ..policy_host.worker import with_sampling
from ..store.attempts import DecisionRow, WholeDecision, decisions_after
from ..store.database import Store
from .placer import Proposal, expected_start_of

MAX_DECISIONS_READ = 500  # decisions that are read at once
BEFORE, GAP = "the file does not hold what led to them", "decisions before them are missing"  # why some are skipped
_BYTES = ("observation", "mask", "log_probability")


@dataclass(frozen=True, slots=True)
class Compared:
    """A decision, and what another policy would have decided."""

    seq: int
    at_s: float
    by: str  # policy or heuristic whose decision it was
    agrees: bool
    job: str
    gpus: tuple[int, ...]  # none to wait
    other_job: str
    other_gpus: tuple[int, ...]
    expected: ExpectedStart | None  # none where it waited
    other_expected: ExpectedStart | None  # none where the other one would wait
    error: str = ""  # why the other policy decides nothing


def export_decisions(store: Store) -> Iterator[str]:
    """Yield all decisions of a store as lines of JSON, with all that one needs to learn from them or to replay them."""
    seq = 0
    while True:
        with store.read() as tx:
            page = decisions_after(tx, seq, MAX_DECISIONS_READ)
        if not page:
            return
        yield from map(_decision_line, page)
        seq = page[-1].row.seq


def _decision_line(whole: WholeDecision) -> str:
    written: dict[str, object] = {name: getattr(whole.row, name) for name in DecisionRow._fields}
    for name in ("placement", "fallback"):
        shares = getattr(whole.row, name)
        written[name] = None if shares is None else [[share.node, list(share.gpus)] for share in shares]
    for name in _BYTES:
        data = getattr(whole, name)
        written[name] = None if data is None else b64encode(data).decode()
    written["past"] = None if whole.past is None else record_to_json(whole.past)
    for name in ("opened_s", "started_s", "ended_s"):
        written[name] = getattr(whole, name)
    return json.dumps(written, separators=(",", ":"))


def read_decisions(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the decisions of a file.

    Raises:
        InputError: If it cannot be read, naming the line.
    """
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            yield _parse_decision(path, number, line)


def _parse_decision(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON: {error}", path=path, line=number) from error
    if not isinstance(found, dict) or not isinstance(found.get("past"), dict):
        raise InputError(
            "no decision", "write the file by `longshore store decisions --out FILE`", path=path, line=number
        )
    return found


def stored_record_in(decision: dict[str, Any]) -> StoredRecord | None:
    """Return what the policy saw at a decision of a file, None if it did not report that."""
    if decision["observation"] is None:
        return None
    observation, mask, log_probability = (b64decode(decision[name]) for name in _BYTES)
    return StoredRecord(observation, mask, log_probability, tuple(decision["explanation"]["actions"]))


def _do_nothing() -> None:
    """Do nothing."""


def replay(
    path: Path, policy: Policy, skipped: Counter[str] | None = None, begin: Callable[[], object] = _do_nothing
) -> Iterator[Compared]:
    """Yield each decision of a file beside what a policy would have decided in its place.

    The cluster continues with the recorded decision. Decisions before the beginning of the first journal, after a gap
    in one, and in one whose order regime is not installed here, cannot be replayed and are skipped.

    Args:
        path: The file.
        policy: That decides.
        skipped: Where skipped decisions are counted, by the reason.
        begin: Called before the policy decides for the first time.

    Raises:
        InputError: If the file is damaged, naming the line.
    """
    counted = Counter[str]() if skipped is None else skipped
    mirror, after, why = None, -1, BEFORE
    for number, found in enumerate(read_decisions(path), 1):
        with _locate_errors(path, number):
            try:
                past = decode_record(found["past"])
            except ForeignJournalError as error:
                mirror, why = None, error.problem
                counted[why] += 1
                continue
            if past.opening is not None:
                mirror = ClusterMirror(*past.opening)
            elif mirror is not None and past.number != after + 1:
                mirror, why = None, GAP
            after = past.number
            if mirror is None:
                counted[why] += 1
                continue
            begin()
            begin = _do_nothing
            *happened, decision = past.calls
            _follow_checked(mirror, happened)
            compared = _compare_decision(mirror, found, decision, _with_same_sampling(found, policy))
            _follow_checked(mirror, [decision])
        yield compared


@contextmanager
def _locate_errors(path: Path, number: int) -> Iterator[None]:
    """Let errors name the line of a file."""
    try:
        yield
    except InputError as error:
        raise InputError(error.problem, error.fix, path=path, line=number) from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, PluginError) as error:
        raise InputError(f"what is recorded cannot have happened: {error!r}", path=path, line=number) from error


def _follow_checked(mirror: ClusterMirror, calls: Iterable[MirrorCall]) -> None:
    gpus = mirror.site.cluster.gpu_node.size
    for each in calls:
        for gpu in _gpus_in_call(each):
            if gpu not in range(gpus):
                raise InputError(f"there is no GPU {gpu}")
        mirror.apply_calls([each])


def _gpus_in_call(call: MirrorCall) -> Sequence[Any]:
    """Return the GPUs that go out of service or come back, whose numbers compiled code trusts."""
    if call.method in ("take_out", "bring_back"):
        return call.arguments
    return call.arguments[0] if call.method == "fail" else ()  # type: ignore[return-value]


def _compare_decision(mirror: ClusterMirror, found: dict[str, Any], decision: MirrorCall, policy: Policy) -> Compared:
    if decision.method not in DECISION_CALLS or mirror.find_due_job() is None:
        raise InputError("no decision was due")
    was = _recorded_proposal(mirror, decision)
    other, expected, error = was, None, ""
    try:
        other = _propose(mirror, policy)
        expected = expected_start_of(mirror, other)
    except Exception as raised:  # a plug-in's policy may fail in any way
        error = f"{type(raised).__name__}: {raised}"
    return Compared(
        int(found["seq"]), float(found["at_s"]), str(found["explanation"]["decided_by"]),
        not error and was.agrees_with(other), was.job, was.gpus, other.job, other.gpus,
        expected_start_of(mirror, was), expected, error,
    )  # fmt: skip


def _with_same_sampling(found: dict[str, Any], policy: Policy) -> Policy:
    """Return a policy that draws what it does where the one that decided did, if it can."""
    temperature = found["explanation"].get("sample_temperature")
    with suppress(PluginError):
        return with_sampling(policy, None if temperature is None else float(temperature))
    return policy


def _propose(mirror: ClusterMirror, policy: Policy) -> Proposal:
    try:
        placed = policy.place(mirror.sim, ROW)
        return Proposal(
            mirror.current_job,
            mirror.gpus_of_job(mirror.current_job) if placed else (),
            not placed and mirror.all_jobs_wait,
        )
    finally:
        mirror.undo_picks()
        mirror.find_due_job()


def _recorded_proposal(mirror: ClusterMirror, decision: MirrorCall) -> Proposal:
    if decision.method == "wait":
        return Proposal(mirror.current_job, (), bool(decision.arguments[0]))
    job, gpus = decision.arguments
    assert isinstance(gpus, tuple)
    return Proposal(str(job), gpus, rests=False)


def comparison_line(compared: Compared) -> str:
    """Return a comparison as a line of JSON."""
    return json.dumps(asdict(compared), separators=(",", ":"))
