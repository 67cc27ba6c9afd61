"""Users take turns in the queue of the live scheduler: as in the simulator, as it is shown, and after a restart."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics.heuristics import HEURISTICS
from longshore.cluster.dispatch.orders.easy import ORDER as EASY
from longshore.cluster.dispatch.turns import line_up
from longshore.cluster.model.scenarios import ORDERS
from longshore.scheduler.access.tokens import Role
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror
from longshore.scheduler.mirror.journal import Opening, decode, encode, encode_opening, to_json
from longshore.scheduler.mirror.standing import Asked, Known, MirrorCall
from longshore.scheduler.model.job_id import new_job_id
from longshore.scheduler.model.job_spec import JobFile
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.rules.queue_order import Led, in_order
from longshore.scheduler.service.service import Service
from longshore.scheduler.store.monitoring.user_turns import UserTurn, delete_turns, put_turns, user_turns
from longshore.scheduler.store.opening import Store, open_store
from longshore.scheduler.store.queue_position import waiting_jobs
from longshore.scheduler.store.rows.jobs import NewJob, insert_job
from tests.scheduler.api.conftest import client_of, service_in
from tests.scheduler.api.test_hidden_jobs import known
from tests.scheduler.obedient import Obedient
from tests.scheduler.test_live import site_of
from tests.scheduler.test_one_order import ACTS, GPUS, Still
from tests.scheduler.test_twin import hetero64_case, layout_of, simulated, twin_of
from tests.scheduler.trials import Trial
from tests.strategies import Case

USERS = ("ada", "bob", "eve")


def users_case(order: str, jobs: int = 60) -> Case:
    """Return a case of `hetero64` with jobs of some users, who take turns, and faults."""
    cluster, scenarios, row, process, rules = hetero64_case(jobs)
    line = np.random.default_rng(5).integers(0, 4, (1, jobs)).astype(np.int32)
    scenarios = scenarios._replace(line=line, submit_s=scenarios.submit_s / 4.0)
    return Case(cluster, scenarios, row, process, rules._replace(order=ORDERS[order], turns=True))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield opened
    opened.close()


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_users_take_turns_as_in_the_simulator_whatever_restarts_lie_between(order: str, store: Store) -> None:
    from longshore.scheduler.service.twin import starts_of

    case = users_case(order)
    twin = twin_of(case, store, Placer(HEURISTICS["patient"]))
    twin.tick()
    looks = 0
    while not twin.is_over:
        twin.live_on()
        twin.tick()
        looks += 1
        if looks % 9 == 0:
            twin.scheduler.cache = None  # read anew, as after a restart

    expected = simulated(case, HEURISTICS["patient"])
    assert sorted(starts_of(store, layout_of(case))) == sorted(expected)
    without = case._replace(rules=case.rules._replace(turns=False))
    assert simulated(without, HEURISTICS["patient"]) != expected


class Shared(Still):
    """A scheduler to whose jobs, of several users, things are done while its clock goes on."""

    def submit(self, script: str, gpus: int = 1, **spec: object) -> str:
        self.later_s += 1e-3  # jobs that came at one moment go by the order in which the scheduler heard of them
        job = JobFile.model_validate({"command": ["sh", "-c", script], "gpus": gpus, "grace_s": 2.0, **spec})
        owner, now_s = USERS[len(self.jobs) % 7 % 3], self.now_s()
        new = NewJob(new_job_id(now_s), job.name, owner, job.model_dump(mode="json"), 0, gpus, 60.0, now_s)
        self.store.write(lambda tx: insert_job(tx, new, writer="api"))
        return new.id

    def live_turns(self) -> list[str]:
        """Return the queue as users take turns in the cluster's arrays."""
        assert self.scheduler.cache is not None
        mirror = self.scheduler.cache.mirror
        slots = {mirror.slot(job): job for job in mirror.known().queue}
        return [slots[slot] for slot in mirror.sim.scratch.lined_up[0, : line_up(mirror.sim, 0, len(slots))].tolist()]

    def stored_turns(self) -> list[str]:
        with self.store.read() as tx:
            turns = {user: Led(it.led_s, it.led) for user, it in user_turns(tx).items()}
            waiting = waiting_jobs(tx, self.now_s())
        return [it.id for it in in_order(waiting, EASY, float("inf"), self.now_s(), GPUS, turns)]


@contextmanager
def shared() -> Iterator[Shared]:
    with TemporaryDirectory() as folder:
        backend = Obedient({"a": GPUS})
        with closing(Shared(Path(folder), {"a": GPUS}, lambda: backend, "obedient")) as trial:
            backend.now_s = trial.now_s
            trial.jobs = []
            for _ in range(8):
                trial.submits(0)
            trial.tick(3)
            yield trial


@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 29)), min_size=30, max_size=40))
@settings(max_examples=10, phases=[Phase.generate])  # to make it smaller takes minutes
def test_turns_are_the_same_live_as_they_are_shown_and_after_a_restart(acts: list[tuple[str, int]]) -> None:
    with shared() as trial:
        for number, (act, at) in enumerate(acts):
            trial.acts()[act](at)
            trial.tick(4)
            trial.wait(0.25, 0.25)
            assert trial.live_turns() == trial.stored_turns(), acts[: number + 1]
            if at % 4 == 1:
                trial.scheduler.cache = None
                trial.tick()
                assert trial.live_turns() == trial.stored_turns(), acts[: number + 1]


def test_a_past_tells_whose_jobs_are_and_the_turns_that_were_had() -> None:
    case = users_case("shortest", 20)
    site = site_of(case)
    mirror = ClusterMirror(site, Known(0.0))
    for number in range(6):
        mirror.begin(float(number))
        mirror.submit(Asked(str(number), 1, 60.0, float(number), number % 2, user=USERS[number % 3]))
        while (job := mirror.due()) is not None and number == 3:
            mirror.carry_out(job, [int(job)])
    mirror.stop("3")
    known_then = mirror.known()
    assert {it.user for it in known_then.turns} == set(USERS)
    assert max(it.led for it in known_then.turns) == 4

    calls = [MirrorCall("submit", (Asked("9", 1, 60.0, 9.0, user="eve"),))]
    past = decode(to_json(encode(0, calls, encode_opening(Opening(mirror.site, known_then)))))

    assert past.opening is not None
    assert list(past.opening.known.turns) == list(known_then.turns)
    assert past.opening.known.jobs == known_then.jobs
    assert list(past.calls) == calls
    again = ClusterMirror(past.opening.site, past.opening.known)
    assert again.known() == known_then
    assert ClusterMirror.of(mirror.snapshot()).known() == known_then
    assert again.due() == mirror.due()


def test_there_is_room_for_more_users_and_priorities_than_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longshore.scheduler.mirror.cluster_mirror.LEAST_ROOM", 4)
    mirror = ClusterMirror(site_of(users_case("easy", 20)), Known(0.0))
    mirror.submit(Asked("stays", 100_000, 60.0, 0.0, user="ada"))
    mirror.submit(Asked("moves", 1, 60.0, 0.0, user="bob"))
    for number in range(1, 30):
        mirror.begin(float(number))
        mirror.submit(Asked(str(number), 1, 60.0, float(number), -number, user=f"user {number}"))
        mirror.give_place("moves", number, None)
        mirror.withdraw(str(number))
    assert [(it.user, it.rank) for it in mirror.known().turns] == [("ada", 0), ("bob", 29)]
    assert list(mirror.known().queue) == ["stays", "moves"]


def test_turns_of_users_are_kept_while_they_have_jobs(tmp_path: Path) -> None:
    with closing(Trial(tmp_path, {"a": 1}, lambda: Obedient({"a": 1}), "obedient")) as trial:
        trial.submit("x")
        rows = [UserTurn("ada", 3, 1.0, 1, 5.0, 2), UserTurn("bob", 0, 1.0, 3, 5.0, 4), UserTurn("eve", 0, 1, 5, 9, 6)]
        trial.store.write(lambda tx: put_turns(tx, rows))
        trial.store.write(lambda tx: put_turns(tx, [rows[0]._replace(led=7), rows[0]._replace(led=8)]))
        assert trial.store.write(lambda tx: delete_turns(tx, 6.0)) == 1
        with trial.store.read() as tx:
            assert user_turns(tx) == {("ada", 3): rows[0]._replace(led=8), ("eve", 0): rows[2]}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = service_in(tmp_path / "served")
    yield made
    made.close()


def test_a_job_tells_how_many_users_have_their_turn_first_and_nobody_is_named(service: Service) -> None:
    from longshore.scheduler.serve.app import create_app

    tokens = {user: known(service, user, Role.USER) for user in USERS}
    with client_of(create_app(service)) as api:

        def ask(user: str, path: str, **body: object) -> dict[str, object]:
            headers = tokens[user]
            answer = api.post(path, json=body, headers=headers) if body else api.get(path, headers=headers)
            assert answer.status_code < 300, answer.text
            found: dict[str, object] = answer.json()
            return found

        body = {"command": ["true"], "gpus": 16}
        jobs = [(user, ask(user, "/v1/jobs", **body)["id"]) for user in ("ada", "ada", "bob", "eve")]
        waiting = [ask(user, f"/v1/jobs/{job}")["waiting"] for user, job in jobs]
        plan = ask("bob", "/v1/jobs?dry_run=true", **body)
        service.ends.set()

    places = [(it["position"], it["turn"]) for it in waiting]  # type: ignore[index]
    assert places == [(1, 0), (4, 0), (2, 1), (3, 2)]
    assert all(user not in str(waiting) for user in USERS)
    assert plan["jobs_ahead"] == 4
