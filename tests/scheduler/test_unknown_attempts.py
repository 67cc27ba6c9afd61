"""Attempts that the store does not have, whatever stands in their folders."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.files.durable import open_folder
from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.api.jobs import UnknownAttemptPage
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.local.folders import AttemptFolders, launched_attempts
from longshore.scheduler.backends.protocol import Attempt, MemberPlace
from longshore.scheduler.backends.slurm.submission import is_late_to_stop
from longshore.scheduler.control.adoption import CHECK_UNKNOWN_S, UnknownAttempts
from longshore.scheduler.model.job import new_job_id
from longshore.scheduler.model.states import Desired, JobState, Run, Status
from longshore.scheduler.store.database import Store, StoreUnreachableError
from tests.scheduler.obedient import WELL, Obedient
from tests.scheduler.restored_trial import ListingWay
from tests.scheduler.rights import as_nobody
from tests.scheduler.trials import Trial
from tests.support.budgets import examples

NODES = {"a": 4, "b": 4}
JOB = new_job_id(1e9)
NAME = f"ls-{JOB}-1"
GOOD: dict[str, Any] = {
    "attempt": NAME, "job": JOB, "number": 1, "command": ["true"], "folder": "/", "environment": {}, "grace_s": 0.0,
    "limit_s": None, "ranks": [["a", 0], ["a", 1]],
}  # fmt: skip
ODD_TEXTS = ["", "\ud800", "\0", "a\0b", "\x1b[2J", "line\nline", "\u2028", "x" * 201, NAME, JOB, "ls-\0-1"]
TEXT = st.one_of(st.sampled_from(ODD_TEXTS), st.text(st.characters(codec=None), max_size=8))
NUMBER = st.one_of(st.integers(), st.sampled_from([True, 1.0, -1, 1 << 31, 1 << 63, 10**400, float("nan")]))
ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
RANK = st.tuples(st.one_of(TEXT, st.sampled_from(["a", "b"])), st.one_of(st.integers(0, 7), NUMBER))
ODD = {
    **{name: st.one_of(TEXT, ANY) for name in ("attempt", "job", "folder", "command", "environment", "more")},
    "number": st.one_of(NUMBER, ANY), "grace_s": ANY, "limit_s": ANY, "ranks": ANY,
}  # fmt: skip
RANKS = st.lists(RANK, min_size=1, max_size=3).map(lambda ranks: ("ranks", ranks))
ANY_FIELD = st.sampled_from(sorted(ODD)).flatmap(lambda name: st.tuples(st.just(name), ODD[name]))
CHANGES = st.lists(st.one_of(RANKS, ANY_FIELD), max_size=3).map(dict)
NAMES = st.sampled_from([NAME, f"ls-{JOB}-01", f"ls-{JOB}-0", "ls-1", "ls---1", f"ls-{JOB}-{'9' * 30}", "ls-x-2"])


def write(folder: Path, name: str, content: bytes) -> Path:
    own = folder / "attempts" / name
    own.mkdir(parents=True)
    path = own / "spec.json"
    path.write_bytes(content)
    return path


def fails(error: Exception) -> Callable[..., None]:
    """Return what fails whatever it is called with."""

    def call(*_: object) -> None:
        raise error

    return call


class Listing(Trial):
    """A scheduler whose backend may have attempts that the store does not have."""

    def looks(self, *, look_s: float = CHECK_UNKNOWN_S) -> UnknownAttempts:
        """Return what another scheduler finds and follows."""
        unknown_attempts = UnknownAttempts(self.parts(ListingWay(self.make()), "another"), check_s=look_s)
        fence = self.scheduler._fence
        assert fence is not None
        unknown_attempts.find_at_backend(fence)
        unknown_attempts.resolve(fence, self.now_s())
        assert unknown_attempts.are_listed(fence)
        return unknown_attempts


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listing]:
    it = Listing(tmp_path_factory.mktemp("listing"), NODES)
    it.tick()
    yield it
    it.close()


@given(NAMES, st.one_of(CHANGES.map(lambda it: json.dumps(GOOD | it).encode()), st.binary(max_size=20)))
@settings(max_examples=examples(300))
def test_whatever_an_attempts_file_says_it_is_found_and_followed_and_can_be_shown(
    trial: Listing, name: str, content: bytes
) -> None:
    shutil.rmtree(trial.folder / "attempts")
    write(trial.folder, name, content)

    unknown_attempts = trial.looks()

    (found,) = unknown_attempts.unresolved
    assert found.name == name
    assert name in UnknownAttemptPage.of(found).model_dump_json()
    assert all(share.node.isprintable() for share in found.placement)


def test_an_attempt_is_found_with_its_gpus(trial: Listing) -> None:
    shutil.rmtree(trial.folder / "attempts")
    write(trial.folder, NAME, json.dumps(GOOD).encode())

    (found,) = trial.looks().unresolved

    assert (found.name, found.job, found.placement) == (NAME, JOB, (Share("a", (0, 1)),))


def test_an_attempt_that_cannot_be_stored_as_its_backend_reports_it_hides_no_other(
    trial: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = {name: (Attempt(name, JOB, 1, (), "", {}), (Share(node, (0,)),)) for name, node in
            (("ls-bad-1", "\ud800"), (NAME, "a"))}  # fmt: skip
    monkeypatch.setattr(LocalBackend, "launched", lambda _: reported)
    monkeypatch.setattr(LocalBackend, "is_proven_gone", lambda *_: False)

    unknown_attempts = trial.looks()

    assert [(it.name, it.placement) for it in unknown_attempts.unresolved] == [
        (NAME, (Share("a", (0,)),)),
        ("ls-bad-1", ()),
    ]
    assert "not known on which GPUs" in unknown_attempts.why_no_starts(trial.scheduler._fence or 0)


@pytest.mark.parametrize("closed", ["spec.json", ""], ids=["file", "folder"])
def test_an_attempt_whose_file_may_not_be_read_hides_no_other(closed: str) -> None:
    other = new_job_id(2e9)
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        for job in (JOB, other):
            own = GOOD | {"attempt": f"ls-{job}-1", "job": job}
            write(folder, f"ls-{job}-1", json.dumps(own).encode())
        for path in folder.rglob("*"):
            path.chmod(0o755)
        (folder / "attempts" / NAME / closed).chmod(0)
        with as_nobody():
            found = launched_attempts(AttemptFolders(folder))
        (folder / "attempts" / NAME).chmod(0o700)

    reported = {name: (attempt.job, attempt.number, placement) for name, (attempt, placement) in found.items()}
    assert reported == {NAME: (JOB, 1, ()), f"ls-{other}-1": (other, 1, (Share("a", (0, 1)),))}


def test_where_no_attempt_may_be_seen_it_is_not_known_which_there_are() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        write(folder, NAME, json.dumps(GOOD).encode())
        (folder / "attempts").chmod(0)
        with as_nobody(), pytest.raises(BackendError, match="Permission denied"):
            launched_attempts(AttemptFolders(folder))
        (folder / "attempts").chmod(0o700)


BUG = ValueError("not what an attempt is")


@pytest.mark.parametrize("name", ["cancel", "is_proven_gone"])
@pytest.mark.parametrize("error", [BUG, BackendError("status 500")], ids=["bug", "error"])
def test_the_request_to_end_an_attempt_outlasts_errors_of_the_backend(
    trial: Listing, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(trial.folder / "attempts")
    write(trial.folder, NAME, b"{torn")
    unknown_attempts, fence, now_s = trial.looks(look_s=0.0), trial.scheduler._fence or 0, trial.now_s()
    with monkeypatch.context() as broken:
        broken.setattr(LocalBackend, name, fails(error))
        assert unknown_attempts.request_end(NAME)
        for _ in range(3):
            unknown_attempts.resolve(fence, now_s)
        assert [it.name for it in unknown_attempts.unresolved] == [NAME]

    unknown_attempts.resolve(fence, now_s)

    assert unknown_attempts.unresolved == []
    assert not unknown_attempts.request_end(NAME)


def test_the_request_to_disregard_an_attempt_outlasts_errors_of_the_store(
    trial: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(trial.folder / "attempts")
    write(trial.folder, NAME, b"{torn")
    unknown_attempts, fence, now_s = trial.looks(look_s=0.0), trial.scheduler._fence or 0, trial.now_s()
    assert unknown_attempts.request_disregard(NAME)
    with monkeypatch.context() as broken:
        broken.setattr(Store, "write", fails(StoreUnreachableError("it is away")))
        with pytest.raises(StoreUnreachableError):
            unknown_attempts.resolve(fence, now_s)
        assert [it.name for it in unknown_attempts.unresolved] == [NAME]

    unknown_attempts.resolve(fence, now_s)

    assert unknown_attempts.unresolved == []


def test_an_end_is_asked_for_until_an_attempt_is_gone(trial: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(trial.folder / "attempts")
    write(trial.folder, NAME, json.dumps(GOOD).encode())
    unknown_attempts, fence, asked = trial.looks(look_s=0.0), trial.scheduler._fence or 0, list[str]()
    monkeypatch.setattr(LocalBackend, "cancel", lambda _self, name, _reason: asked.append(name))
    unknown_attempts.request_end(NAME)
    for _ in range(3):
        unknown_attempts.resolve(fence, trial.now_s())

    assert asked == [NAME] * 3  # a backend may kill it only when it did not end by itself in time


def test_a_bug_of_the_backend_that_keeps_its_attempts_from_being_known_lets_nothing_start_until_it_is_gone(
    trial: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_attempts = UnknownAttempts(trial.parts(ListingWay(trial.make()), "another"), list_again_s=0.0)
    fence = trial.scheduler._fence or 0
    with monkeypatch.context() as broken:
        broken.setattr(LocalBackend, "launched", fails(BUG))
        unknown_attempts.find_at_backend(fence)
        assert "not known which attempts run" in unknown_attempts.why_no_starts(fence)
        assert unknown_attempts.is_listing_due

    unknown_attempts.find_at_backend(fence)

    assert unknown_attempts.are_listed(fence)


@pytest.mark.parametrize(
    ("content", "late"),
    [
        (b"{torn", True), (b"[]", True), (json.dumps(GOOD | {"grace_s": "x"}).encode(), True),
        (json.dumps(GOOD | {"grace_s": float("nan")}).encode(), True), (b" " * (5 << 20), True),
        (json.dumps(GOOD | {"grace_s": 600.0}).encode(), False),
    ],
    ids=range(6),
)  # fmt: skip
def test_slurm_kills_a_cancelled_attempt_of_which_no_one_knows_how_long_it_may_take(
    content: bytes, late: bool, tmp_path: Path  # noqa: FBT001
) -> None:  # fmt: skip
    own = write(tmp_path, NAME, content).parent
    (own / "cancel.json").touch()
    folder = open_folder(str(own))

    assert is_late_to_stop(folder) == late
    os.close(folder)


MADE_UP: list[dict[str, Any]] = [
    {"ranks": [[node, 0]]} for node in ("\ud800", "\0", "", "line\nline", "x" * 201)
] + [
    {"ranks": [["a", 0], ["a", 0]]}, {"ranks": [["a", -1]]}, {"ranks": [["a", True]]},
    {"number": True}, {"number": 2}, {"job": "other"}, {"attempt": "ls-other-1"},
]  # fmt: skip


@pytest.mark.parametrize("changes", MADE_UP, ids=range(len(MADE_UP)))
def test_no_one_believes_a_file_that_no_scheduler_wrote(trial: Listing, changes: dict[str, Any]) -> None:
    shutil.rmtree(trial.folder / "attempts")
    write(trial.folder, NAME, json.dumps(GOOD | changes).encode())

    (found,) = trial.looks().unresolved

    assert (found.name, found.job, found.placement) == (NAME, JOB, ())


@given(CHANGES)
@settings(max_examples=examples(100))
def test_whatever_the_file_of_a_waiting_jobs_next_attempt_says_the_job_goes_on_with_it_or_it_is_followed(
    trial: Listing, changes: dict[str, Any]
) -> None:
    shutil.rmtree(trial.folder / "attempts")
    job = trial.submit("true", gpus=2)
    name = f"ls-{job}-1"
    own = GOOD | {"attempt": name, "job": job}
    write(trial.folder, name, json.dumps(own | changes).encode())

    unknown_attempts = trial.looks()

    assert [it.name for it in unknown_attempts.unresolved] == [name] * (not trial.attempts(job))


class Remembering(Obedient):
    """A backend that has attempts which it did not get from this scheduler."""

    def __init__(self, nodes: Mapping[str, int]) -> None:
        super().__init__(nodes)
        self.remembered: dict[str, tuple[Attempt, Placement]] = {}
        self.places: dict[str, list[MemberPlace]] = {}

    def launched(self) -> dict[str, tuple[Attempt, Placement]]:
        return self.remembered


@pytest.mark.parametrize("gpus", [(0, 1), (0, 7)], ids=["of another job", "not in the cluster file"])
def test_the_next_attempt_of_a_waiting_job_is_not_adopted_on_gpus_that_it_cannot_have(
    gpus: tuple[int, int], tmp_path: Path
) -> None:
    backend = Remembering({"a": 2})
    with closing(Trial(tmp_path, backend.nodes, lambda: backend, "obedient")) as trial:
        first = trial.submit("true", gpus=2)
        trial.runs(first)
        waiting = trial.submit("true", gpus=2)
        name = f"ls-{waiting}-1"
        backend.remembered = {name: (Attempt(name, waiting, 1, ("true",), "", {}), (Share("a", gpus),))}
        backend.known[name] = Status(Run.RUNNING, started_s=1.0)
        trial.way = ListingWay(backend)
        trial.scheduler = trial.another()
        trial.tick(2)
        assert [found.name for found in trial.scheduler.unknown_attempts.unresolved] == [name]
        assert (trial.attempts(waiting), trial.job(waiting).state) == ([], JobState.QUEUED)
        assert {row.job_id for row in trial.held()} == {first}


class RingWay(ListingWay):
    """A way to a backend that has rings; none of them answers."""

    backend: Remembering

    def __init__(self, backend: Remembering) -> None:
        super().__init__(backend)
        self.capabilities = replace(self.capabilities, runs_rings=True)

    def ring_places(self, name: str) -> list[MemberPlace] | None:
        return self.backend.places.get(name)


class RingTrial(Trial):
    """A trial whose backend runs a ring that another scheduler launched on GPUs 0 and 1 of node a."""

    def __init__(self, folder: Path, nodes: Mapping[str, int]) -> None:
        self.known_at_backend = Remembering(nodes)
        super().__init__(folder, nodes, lambda: self.known_at_backend, "obedient")
        self.crash()

    def crash(self) -> None:
        self.way = RingWay(self.known_at_backend)
        self.scheduler = self.another()

    def ring(self, in_store: str) -> str:
        """Return the job of the ring, which the store knows as such."""
        job = new_job_id(self.now_s()) if in_store == "unknown" else self.submit("true", gpus=2, failover="switch")
        name = f"ls-{job}-1"
        self.known_at_backend.holds.add(name)
        if in_store in ("running", "cancelled"):
            self.runs(job)
        if in_store == "cancelled":
            self.wish(job, Desired.CANCEL)
            self.tick(2)
        if in_store in ("unknown", "queued"):
            self.known_at_backend.known[name] = Status(Run.PENDING)
        attempt = Attempt(name, job, 1, ("true",), "", {}, seats=2)
        self.known_at_backend.remembered = {name: (attempt, (Share("a", (0, 1)),))}
        return job

    def held_by_others(self, job: str) -> set[tuple[str, int]]:
        return {(row.node, row.gpu) for row in self.held() if row.job_id != job}


LAUNCHED = [MemberPlace("a", 0), MemberPlace("a", 1)]


@pytest.mark.parametrize("in_store", ["unknown", "queued", "running", "cancelled"])
def test_no_other_job_gets_a_gpu_that_a_ring_was_given_while_it_ran(in_store: str, tmp_path: Path) -> None:
    with closing(RingTrial(tmp_path, {"a": 2, "b": 2})) as trial:
        job, backend = trial.ring(in_store), trial.known_at_backend
        name = f"ls-{job}-1"
        assert in_store in ("unknown", "queued") or trial.attempts(job)[0].placement == (Share("a", (0, 1)),)
        has_left, has = MemberPlace("b", 1, is_used=False, is_left=True), MemberPlace("b", 0)
        backend.places[name] = [*LAUNCHED, has_left, has]
        trial.crash()
        others = [trial.submit("true") for _ in range(2)]
        trial.tick(5)
        assert trial.held_by_others(job) == {("b", 1)}

        backend.holds.clear()
        backend.known[name] = WELL
        for other in others:
            trial.runs(other)


def test_a_ring_that_claims_all_gpus_holds_up_no_other_job(tmp_path: Path) -> None:
    with closing(RingTrial(tmp_path, {"a": 2, "b": 8})) as trial:
        job = trial.ring("running")
        claimed = [MemberPlace("b", gpu % 8) for gpu in range(1000)]
        trial.known_at_backend.places[f"ls-{job}-1"] = [*LAUNCHED, *claimed]
        trial.crash()
        trial.runs(trial.submit("true"))
