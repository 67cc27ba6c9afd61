"""Whatever a policy does, the job is placed, by the heuristic if need be, and the reason is counted."""

import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.rogues import LEAVES, VERSION, install
from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.files.errors import PluginError
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, JobRequest, MirrorOrigin
from longshore.scheduler.placement.placer import Decision, Placer
from longshore.scheduler.policy_host.process import Breaker, Miss
from tests.plain_run import busy_case
from tests.scheduler.live_run import site_of

PATIENCE_S = 120.0  # far more than anything here takes
SITE = site_of(busy_case(ring=False))


@pytest.fixture(scope="module")
def rogues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("rogues")
    install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv(LEAVES, str(folder / "forked"))
        yield folder


class Asks:
    """A cluster to which jobs come one after the other, and who decides about them."""

    def __init__(self, policy: str, deadline_s: float = PATIENCE_S, breaker: Breaker | None = None) -> None:
        self.mirror, self.jobs = ClusterMirror(SITE, MirrorOrigin(0.0)), 0
        self.placer = Placer(HEURISTICS["pack"], policy, deadline_s, breaker=breaker)
        self.placer.follow_mirror(self.mirror)
        self.placer.wait_until_ready(PATIENCE_S)

    def decide(self, gpus: int) -> Decision:
        job, self.jobs = f"job {self.jobs}", self.jobs + 1
        self.mirror.begin(float(self.jobs))
        self.mirror.submit(JobRequest(job, gpus, 60.0, float(self.jobs)))
        assert self.mirror.find_due_job() == job
        decision = self.placer.decide(self.mirror)
        assert (decision.started, decision.job, len(decision.gpus)) == (True, job, gpus)
        return decision

    def decide_and_end(self, gpus: int) -> Decision:
        decision = self.decide(gpus)
        self.mirror.finish(decision.job)
        return decision


@pytest.fixture
def asks(rogues: Path) -> Iterator[Callable[..., Asks]]:
    made: list[Asks] = []

    def make(policy: str, deadline_s: float = PATIENCE_S, breaker: Breaker | None = None) -> Asks:
        made.append(Asks(f"rogue-{policy}", deadline_s, breaker))
        return made[-1]

    yield make
    for each in made:
        each.placer.end()


OVER = {
    "hang": (Miss.LATE, "no decision within 200 ms"),
    "die": (Miss.DEAD, "the policy's process has ended"),
    "babble": (Miss.MALFORMED, "the policy's process sent what is no answer"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", OVER)
def test_a_policy_whose_process_is_of_no_more_use_is_replaced_by_the_heuristic_and_rests(
    name: str, asks: Callable[..., Asks]
) -> None:
    asked = asks(name, 0.2 if OVER[name][0] is Miss.LATE else PATIENCE_S)
    until(lambda: asked.decide_and_end(1).kind is None)
    asked.placer.misses.clear()

    missed, after = asked.decide(2), asked.decide(1)

    assert (missed.kind, missed.reason[: len(OVER[name][1])]) == OVER[name]
    assert (missed.by, missed.proposal, missed.version) == ("pack", None, VERSION)
    assert (after.kind, after.by) == (Miss.RESTING, "pack")
    assert asked.placer.misses == {missed.kind: 1, Miss.RESTING: 1}


@pytest.fixture(scope="module")
def mixed(rogues: Path) -> Iterator[Asks]:
    asked = Asks("rogue-mixed")
    yield asked
    asked.placer.end()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("gpus", "kind", "reason"),
    [
        (2, Miss.MALFORMED, "what the policy saw is not finite"),
        (3, Miss.RAISED, "RuntimeError: no idea"),
        (4, Miss.REFUSED, "asks for 4 GPUs and was given 1"),
        (6, Miss.RAISED, "MemoryError"),
    ],
)
def test_a_policy_that_fails_at_a_decision_is_heard_again_at_the_next(
    gpus: int, kind: Miss, reason: str, mixed: Asks
) -> None:
    missed, heard = mixed.decide_and_end(gpus), mixed.decide_and_end(1)

    assert (missed.kind, missed.by) == (kind, "pack")
    assert reason in missed.reason
    assert len(missed.reason) <= 500
    assert missed.reason.isprintable()
    assert (heard.kind, heard.by) == (None, "rogue-mixed")


@pytest.mark.full
def test_gpus_that_are_busy_are_refused(asks: Callable[..., Asks]) -> None:
    asked = asks("busy")
    held = asked.decide(1)

    refused = asked.decide(2)

    assert (held.by, refused.by) == ("rogue-busy", "pack")
    assert (refused.kind, refused.reason) == (Miss.REFUSED, f"GPU {held.gpus[0]} is busy")
    assert not set(refused.gpus) & set(held.gpus)


def test_what_a_policy_prints_does_not_come_out_of_the_scheduler(
    mixed: Asks, capfd: pytest.CaptureFixture[str]
) -> None:
    decision = mixed.decide_and_end(5)

    assert (decision.kind, decision.by) == (None, "rogue-mixed")
    assert "chat" not in capfd.readouterr().out


@pytest.mark.full
def test_a_policy_follows_another_cluster_without_being_started_again(mixed: Asks) -> None:
    assert mixed.placer.rollover is not None
    pids = mixed.placer.rollover.pids
    first = mixed.decide(1)
    mixed.mirror = ClusterMirror(SITE, MirrorOrigin(float(mixed.jobs)))

    mixed.placer.follow_mirror(mixed.mirror)
    again = mixed.decide_and_end(1)

    assert (again.kind, again.gpus) == (None, first.gpus)
    assert mixed.placer.rollover.pids == pids


def test_a_policy_takes_in_whatever_happens_at_once(mixed: Asks) -> None:
    mixed.decide_and_end(1)
    for number in range(1000):
        mixed.mirror.submit(JobRequest(f"gone {number}", 1, 60.0, 0.0))
        mixed.mirror.withdraw(f"gone {number}")

    assert mixed.decide_and_end(1).kind is None


@pytest.mark.full
def test_a_policy_that_fails_three_times_in_a_row_rests(asks: Callable[..., Asks]) -> None:
    asked = asks("raise")

    kinds = [asked.decide_and_end(2).kind for _ in range(5)]

    assert kinds == [Miss.RAISED] * 3 + [Miss.RESTING] * 2


@pytest.mark.full
def test_a_forged_answer_about_an_unknown_job_is_refused_and_the_one_behind_it_ends_the_process(
    asks: Callable[..., Asks],
) -> None:
    asked = asks("forge")

    asked.decide(1)

    assert asked.decide(2).reason == "job nobody does not wait"
    assert asked.decide(1).kind is Miss.MALFORMED
    assert asked.decide(1).kind is Miss.RESTING


@pytest.mark.full
def test_processes_that_a_policy_has_started_end_with_it(rogues: Path, asks: Callable[..., Asks]) -> None:
    asked = asks("fork", 2.0)
    assert asked.placer.rollover is not None
    (session,) = asked.placer.rollover.pids
    until(lambda: asked.decide_and_end(1).kind is None)

    assert asked.decide(2).kind is Miss.LATE

    assert (rogues / "forked").read_text() == "forked"
    until(lambda: living_processes(session) == 0)


def living_processes(session: int) -> int:
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        count += fields[0] != "Z" and int(fields[3]) == session
    return count


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.full
def test_a_policy_that_has_rested_is_started_again_and_knows_what_has_happened(
    asks: Callable[..., Asks],
) -> None:
    asked = asks("die", breaker=Breaker(first_rest_s=0.0))
    first = asked.decide(1)
    assert asked.decide(2).kind is Miss.DEAD
    assert asked.decide(1).kind is Miss.LOADING
    until(lambda: asked.placer.is_ready(0.1))

    after = asked.decide(1)

    assert (after.kind, after.by) == (None, "rogue-die")
    assert not set(after.gpus) & set(first.gpus)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "reason"),
    [("rogue-none", "lacks part of the policy protocol"), ("other.zip", "made by another version")],
)
def test_a_policy_that_cannot_be_loaded_says_why_and_jobs_are_placed_meanwhile(
    name: str, reason: str, rogues: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rogues)
    with zipfile.ZipFile(rogues / "other.zip", "w") as archive:
        archive.writestr("schema.json", '{"format": 2}')
        archive.writestr("weights.npz", b"")
    placer, mirror = Placer(HEURISTICS["pack"], name), ClusterMirror(SITE, MirrorOrigin(0.0))
    placer.follow_mirror(mirror)

    with pytest.raises(PluginError, match=reason):
        placer.wait_until_ready(PATIENCE_S)

    mirror.submit(JobRequest("job", 2, 60.0, 0.0))
    assert mirror.find_due_job() == "job"
    decision = placer.decide(mirror)
    assert (decision.by, decision.started, decision.kind) == ("pack", True, Miss.RESTING)
    placer.end()


def test_jobs_are_placed_where_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    placer = Placer(HEURISTICS["pack"], "pack", breaker=Breaker(first_rest_s=0.0))
    mirror = ClusterMirror(SITE, MirrorOrigin(0.0))
    placer.follow_mirror(mirror)
    mirror.submit(JobRequest("job", 2, 60.0, 0.0))
    assert mirror.find_due_job() == "job"

    decision = placer.decide(mirror)

    assert (decision.by, decision.started, decision.kind) == ("pack", True, Miss.DEAD)
    assert decision.reason.startswith("no process can be started")
