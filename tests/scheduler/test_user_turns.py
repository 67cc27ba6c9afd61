"""Users take turns in the queue of the live scheduler as in the simulator, whatever restarts lie between."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.presets.drawn import hetero64
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, JobRequest, MirrorCall, MirrorOrigin
from longshore.scheduler.mirror.journal import decode_record, encode_opening, encode_record, record_to_json
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.nodes import UserTurn, put_user_turns, user_turns
from longshore.testing.twin import starts_of
from tests.scheduler.live_run import site_of
from tests.scheduler.obedient import Obedient
from tests.scheduler.trials import Trial
from tests.scheduler.twin_run import layout_of, simulated, twin_of
from tests.strategies import Case

USERS = ("ada", "bob", "eve")


def users_case(order: str, jobs: int = 60) -> Case:
    """Return a case of `hetero64` with jobs of some users, who take turns, and faults."""
    cluster, scenarios, process, rules = hetero64(1, 7, jobs=jobs, load=0.85)
    cluster = cluster._replace(speed=scenarios.speed[0])
    line = np.random.default_rng(5).integers(0, 4, (1, jobs)).astype(np.int32)
    scenarios = scenarios._replace(line=line, submit_s=scenarios.submit_s / 4.0)
    rules = rules._replace(order=ORDERS[order], turns=True, waiting=True, ageing_s=24 * 3600.0)
    return Case(cluster, scenarios, 0, process, rules)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield opened
    opened.close()


@pytest.mark.few(2)
@pytest.mark.parametrize("order", sorted(ORDERS))
def test_users_take_turns_as_in_the_simulator_whatever_restarts_lie_between(order: str, store: Store) -> None:
    case = users_case(order)
    twin = twin_of(case, store, Placer(HEURISTICS["patient"]))
    twin.tick()
    looks = 0
    while not twin.is_over:
        twin.process_next_moment()
        twin.tick()
        looks += 1
        if looks % 9 == 0:
            twin.scheduler.cache = None  # read anew, as after a restart

    expected = simulated(case, HEURISTICS["patient"])
    assert sorted(starts_of(store, layout_of(case))) == sorted(expected)
    without = case._replace(rules=case.rules._replace(turns=False))
    assert simulated(without, HEURISTICS["patient"]) != expected


def test_a_journal_has_the_owners_of_jobs_and_the_turns_that_they_had() -> None:
    case = users_case("shortest", 20)
    site = site_of(case)
    mirror = ClusterMirror(site, MirrorOrigin(0.0))
    for number in range(6):
        mirror.begin(float(number))
        mirror.submit(JobRequest(str(number), 1, 60.0, float(number), number % 2, user=USERS[number % 3]))
        while (job := mirror.find_due_job()) is not None and number == 3:
            mirror.carry_out(job, [int(job)])
    mirror.stop("3")
    known_then = mirror.origin_now()
    assert {it.user for it in known_then.turns} == set(USERS)
    assert max(it.led for it in known_then.turns) == 4

    calls = [MirrorCall("submit", (JobRequest("9", 1, 60.0, 9.0, user="eve"),))]
    past = decode_record(record_to_json(encode_record(0, calls, encode_opening(mirror.site, known_then))))

    assert past.opening is not None
    site, known = past.opening
    assert list(known.turns) == list(known_then.turns)
    assert known.jobs == known_then.jobs
    assert list(past.calls) == calls
    again = ClusterMirror(site, known)
    assert again.origin_now() == known_then
    assert ClusterMirror.from_snapshot(mirror.snapshot()).origin_now() == known_then
    assert again.find_due_job() == mirror.find_due_job()


def test_there_is_room_for_more_users_and_priorities_than_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longshore.scheduler.mirror.cluster_mirror.MIN_SLOTS", 4)
    mirror = ClusterMirror(site_of(users_case("easy", 20)), MirrorOrigin(0.0))
    mirror.submit(JobRequest("stays", 100_000, 60.0, 0.0, user="ada"))
    mirror.submit(JobRequest("moves", 1, 60.0, 0.0, user="bob"))
    for number in range(1, 30):
        mirror.begin(float(number))
        mirror.submit(JobRequest(str(number), 1, 60.0, float(number), -number, user=f"user {number}"))
        mirror.give_place("moves", number, None)
        mirror.withdraw(str(number))
    assert mirror.origin_now().turns == ()
    assert list(mirror.origin_now().queue) == ["stays", "moves"]


def test_of_turns_of_one_user_the_later_is_kept(tmp_path: Path) -> None:
    with closing(Trial(tmp_path, {"a": 1}, lambda: Obedient({"a": 1}), "obedient")) as trial:
        rows = [UserTurn("ada", 3, 1.0, 1, 5.0, 2), UserTurn("eve", 0, 1, 5, 9, 6)]
        trial.store.write(lambda tx: put_user_turns(tx, rows))
        trial.store.write(lambda tx: put_user_turns(tx, [rows[0]._replace(led=7), rows[0]._replace(led=8)]))
        with trial.store.read() as tx:
            assert user_turns(tx) == {("ada", 3): rows[0]._replace(led=8), ("eve", 0): rows[1]}
