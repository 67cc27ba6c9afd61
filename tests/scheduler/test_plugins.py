"""A policy in a process of its own: it follows the cluster, and whatever it does, the scheduler gets an answer."""

import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from longshore.agents.registry import find_policy
from longshore.agents.rollouts import Rollout
from longshore.cluster.files.errors import PluginError
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, JobRequest, MirrorOrigin
from longshore.scheduler.policy_host.messages import read_edition
from longshore.scheduler.policy_host.process import PolicyProcess
from longshore.scheduler.policy_host.worker import limit_search_time, load_policy
from tests.compiled_runs import compiled
from tests.plain_run import busy_case
from tests.scheduler.live_run import LiveCopy, decided, site_of
from tests.scheduler.served import until
from tests.strategies import Case

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
LOADED_S = 120.0  # far more than loading takes
SITE = site_of(busy_case(ring=False))


def single_faults(case: Case) -> Case:
    """Let only single GPUs fail: a real cluster does not tell a node's fault from those of all its GPUs."""
    gpus = case.cluster.gpu_node.size
    scenarios = case.scenarios._replace(source_rate_per_s=case.scenarios.source_rate_per_s.copy())
    scenarios.source_rate_per_s[:, gpus:] = 0.0
    return case._replace(scenarios=scenarios._replace(hazard_per_s=scenarios.source_rate_per_s[:, :gpus].copy()))


def loaded(name: str, mirror: ClusterMirror) -> PolicyProcess:
    process = PolicyProcess(read_edition(name), mirror.site, LOADED_S)
    mirror.journal = []
    assert process.poll_ready(LOADED_S) is not None
    return process


@pytest.mark.full
@pytest.mark.parametrize("name", ["patient", "rollout:patient"])
def test_a_policy_in_a_process_of_its_own_decides_as_in_the_simulation(name: str) -> None:
    case = single_faults(busy_case(ring=True))
    live = LiveCopy(case, compiled(case))
    process = loaded(name, live.mirror)
    answers = []

    def ask() -> None:
        assert live.mirror.journal is not None
        journal, live.mirror.journal = live.mirror.journal, []
        process.record_calls(journal)
        process.send_question(live.mirror.snapshot)
        answers.append(process.receive_answer())

    pairs = list(decided(live, find_policy(name), ask))

    assert len(pairs) >= 10
    for answer, (there, here) in zip(answers, pairs, strict=True):
        assert there == here
        due, placed, job, gpus = here
        assert (answer.job if placed else due, sorted(answer.gpus)) == (job, gpus)
    process.end()


def test_a_policy_outlives_the_thread_that_started_its_process() -> None:
    """A request's thread may end at any time, while the policy is to answer later ones."""
    with ThreadPoolExecutor(1) as pool:
        process = pool.submit(PolicyProcess, read_edition("patient"), SITE, LOADED_S).result()
        thread = pool.submit(threading.get_native_id).result()
        assert process.poll_ready(LOADED_S) is not None
    until(lambda: not Path(f"/proc/self/task/{thread}").exists())
    mirror = ClusterMirror(SITE, MirrorOrigin(0.0))
    mirror.submit(JobRequest("job", 1, 60.0, 0.0))
    mirror.begin(1.0)
    assert mirror.find_due_job() == "job"
    process.send_question(mirror.snapshot)
    assert process.receive_answer().job == "job"
    process.end()


def test_a_policy_that_does_not_exist_is_reported_in_one_line() -> None:
    process = PolicyProcess(read_edition("nobody"), SITE, LOADED_S)

    with pytest.raises(PluginError, match=r"nobody.*cannot be loaded"):
        process.poll_ready(LOADED_S)

    assert process.is_over


@pytest.mark.parametrize(("name", "budget_s"), [("rollout:patient", 0.07), ("rollout:patient@20ms", 0.02)])
def test_rollouts_stop_trying_before_the_deadline(name: str, budget_s: float) -> None:
    policy = load_policy(read_edition(name))

    limit_search_time(policy, 0.1)

    assert isinstance(policy, Rollout)
    assert policy.search.budget_s == pytest.approx(budget_s)


@pytest.mark.full
def test_a_checkpoint_is_loaded_from_what_was_read_of_it_and_named_as_it_was(tmp_path: Path) -> None:
    path = Path(shutil.copy(CHECKPOINTS / "hetero64-wait-1.zip", tmp_path / "mine.zip"))
    edition = read_edition(f"rollout:{path}@20ms,h4")
    path.unlink()

    policy = load_policy(edition)

    assert policy.name == "rollout:mine@20ms,h4"
    assert edition.version == sha256((CHECKPOINTS / "hetero64-wait-1.zip").read_bytes()).hexdigest()


def test_a_live_cluster_is_the_same_after_a_snapshot_taken_between_two_decisions_of_a_moment() -> None:
    case = busy_case(ring=True)
    policy, live, copied = find_policy("patient"), LiveCopy(case, compiled(case)), 0

    def copy() -> None:
        nonlocal copied
        copied += 1
        before = live.mirror.snapshot()
        live.mirror = ClusterMirror.from_snapshot(pickle.loads(pickle.dumps(before)))
        after = live.mirror.snapshot()
        assert (before.names, before.slot) == (after.names, after.slot)
        assert all((before.state[name] == after.state[name]).all() for name in before.state)

    assert all(there == here for there, here in decided(live, policy, copy))
    assert copied >= 10
