"""Environments that Gymnasium has by name, and problems of users' own traces and clusters in one call."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, registry
from numpy.typing import NDArray

from longshore import registration
from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.presets.named import NAMES, preset_problem, problem_of
from longshore.cluster.presets.problems import WINDOW_JOBS
from longshore.envs.batch import AgentView
from longshore.training.problems import PRESETS
from tests.envs.random_run import trace_in
from tests.support import processes

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL: dict[str, dict[str, Any]] = {
    name: {"windows": 3} if name.endswith("Trace-v0") else {} if name.endswith("Placement-v0") else {"scenarios": 3}
    for name in registration.ENVIRONMENTS
}


def test_import_longshore_is_enough_before_gymnasium_and_after_and_imports_nothing_heavy() -> None:
    before = "import sys, longshore; early = set(sys.modules); import importlib.util"
    before += "; importlib.util.find_spec('gymnasium'); import gymnasium"  # as libraries check whether it is there
    after = "import longshore, gymnasium.envs.registration as known; print(*early & {'numpy', 'gymnasium', 'torch'})"
    names = "print(*sorted(one for one in known.registry if one.startswith('longshore/')))"
    code = "; ".join((before, after, names, "print(gymnasium.__spec__.loader)"))
    done = processes.run([sys.executable, "-W", "error", "-c", code], capture_output=True, check=True)
    early, names, loader = done.stdout.splitlines()
    assert early == ""
    assert names.split() == sorted(registration.ENVIRONMENTS)
    assert "SourceFileLoader" in loader


def test_they_are_registered_at_once_where_gymnasium_has_been_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in registration.ENVIRONMENTS:
        monkeypatch.delitem(registry, name)
    registration.register_with_gymnasium()
    specs = {name: registry[name] for name in registration.ENVIRONMENTS}
    registration.register_with_gymnasium()
    assert all(registry[name] is spec for name, spec in specs.items())


@pytest.mark.parametrize("name", registration.ENVIRONMENTS)
def test_an_environment_is_made_by_name_alone_and_by_many_and_again_from_its_spec(name: str, tmp_path: Path) -> None:
    options = SMALL[name] | ({"trace": str(trace_in(tmp_path))} if name.endswith("Trace-v0") else {})
    env = gymnasium.make(name, **options)
    assert env.reset(seed=0)[0] in env.observation_space
    assert env.spec is not None
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    envs = gymnasium.make_vec(name, num_envs=2, **options)
    assert np.array_equal(again.reset(seed=0)[0], env.reset(seed=0)[0])
    assert np.array_equal(envs.reset(seed=0)[0][0], env.reset(seed=0)[0])
    with pytest.raises(TypeError, match="colour"):
        gymnasium.make(name, **options, colour="red")


def test_the_patents_are_the_patent_to_the_letter() -> None:
    for gpus in (4, 64):
        env: Any = gymnasium.make(f"longshore/Patent{gpus}-v0", scenarios=2).unwrapped
        assert env.batch.view == AgentView("gpu", "patent-literal", "best_of_random")
        assert env.action_space.n == gpus
        best_of_9: Any = gymnasium.make(f"longshore/Patent{gpus}-v0", scenarios=2, random_runs=9).unwrapped
        several: Any = gymnasium.make_vec(f"longshore/Patent{gpus}-v0", num_envs=2, scenarios=2, random_runs=9)
        assert best_of_9.batch.view == several.unwrapped.batch.view == replace(env.batch.view, random_runs=9)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_that_of_training_by_another_key(name: str) -> None:
    problem = preset_problem(name, 2, order="easy", waiting=True)
    assert problem.rules.order == ORDERS["easy"]
    assert problem.rules.waiting
    assert problem.rules.estimated_hazards
    assert problem.scenarios.jobs.size == 2
    assert PRESETS[name].reward in ("jct", "potential", "best_of_random")


@pytest.mark.parametrize("wrong", [{"preset": "hetero65"}, {"preset": "patent4", "order": "lifo"}])
def test_a_preset_or_order_that_is_not_there_is_refused_with_those_that_are(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is none of .*(patent64|easy)"):
        gymnasium.make("longshore/Hetero64-v0", **wrong)


def windows(problem: Any) -> NDArray[np.float64]:
    works: NDArray[np.float64] = problem.scenarios.work_s
    return works


def test_a_problem_is_made_of_a_trace_and_a_cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = trace_in(tmp_path)
    problem = problem_of(trace, EXAMPLES / "small.yaml", windows=5, order="shortest", waiting=True, max_gpus=4)
    assert problem.cluster.gpu_node.size == 64
    assert (problem.rules.order, problem.rules.waiting) == (ORDERS["shortest"], True)
    assert problem.scenarios.jobs.tolist() == [WINDOW_JOBS] * 5
    assert problem.scenarios.gpus.max() == 4
    assert "more than 4 GPUs" in caplog.text
    later = problem_of(trace, windows=5, part=(0.7, 1.0))
    assert not set(np.unique(windows(problem))) & set(np.unique(windows(later)))
    assert np.array_equal(windows(problem_of(trace, windows=5, seed=3)), windows(problem_of(trace, windows=5, seed=3)))
    assert not np.array_equal(windows(problem_of(trace, windows=5, seed=3)), windows(problem_of(trace, windows=5)))


def test_a_problem_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    trace = trace_in(tmp_path)
    with pytest.raises(InputError, match="nothing"):
        problem_of(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="nothing"):
        problem_of(trace, tmp_path / "nothing.yaml")
    with pytest.raises(ValueError, match="need a cluster"):
        problem_of(trace, faults=tmp_path / "faults.json")
    with pytest.raises(ValueError, match="'lifo' is none of"):
        problem_of(trace, order="lifo")
