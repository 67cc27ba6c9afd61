"""A policy in a process of its own: it follows the cluster, and whatever it does, the scheduler gets an answer."""

import pytest

from longshore.agents.registry import find_policy
from longshore.cluster.errors import PluginError
from longshore.scheduler.live import Known, LiveCluster
from longshore.scheduler.plugins.editions import read_edition
from longshore.scheduler.plugins.host import PolicyProcess
from tests.compiled_runs import compiled
from tests.plain_run import busy_case
from tests.scheduler.test_live import Told, decided, site_of
from tests.strategies import Case

LOADED_S = 120.0  # far more than loading takes
SITE = site_of(busy_case(ring=False))


def single_faults(case: Case) -> Case:
    """Let only single GPUs fail: a real cluster does not tell a node's fault from those of all its GPUs."""
    gpus = case.cluster.gpu_node.size
    scenarios = case.scenarios._replace(source_rate_per_s=case.scenarios.source_rate_per_s.copy())
    scenarios.source_rate_per_s[:, gpus:] = 0.0
    return case._replace(scenarios=scenarios._replace(hazard_per_s=scenarios.source_rate_per_s[:, :gpus].copy()))


def loaded(name: str, live: LiveCluster) -> PolicyProcess:
    process = PolicyProcess(read_edition(name), live.snapshot(), LOADED_S)
    live.journal = []
    assert process.ready(LOADED_S) is not None
    return process


@pytest.mark.parametrize("name", ["patient", "rollout:patient"])
def test_a_policy_in_a_process_of_its_own_decides_as_in_the_simulation(name: str) -> None:
    case = single_faults(busy_case(ring=True))
    told = Told(case, compiled(case))
    process = loaded(name, told.live)
    answers = []

    def ask() -> None:
        assert told.live.journal is not None
        journal, told.live.journal = told.live.journal, []
        process.tell(journal)
        process.ask()
        answers.append(process.answer())

    pairs = list(decided(told, find_policy(name), ask))

    assert len(pairs) >= 10
    for answer, (there, here) in zip(answers, pairs, strict=True):
        assert there == here
        due, placed, job, gpus = here
        assert (answer.job if placed else due, sorted(answer.gpus)) == (job, gpus)
    process.end()


def test_a_policy_that_does_not_exist_is_told_in_one_line() -> None:
    process = PolicyProcess(read_edition("nobody"), LiveCluster(SITE, Known(0.0)).snapshot(), LOADED_S)

    with pytest.raises(PluginError, match=r"nobody.*cannot be loaded"):
        process.ready(LOADED_S)

    assert process.is_over
