"""Names of policies: paths may have an '@', too."""

import shutil
from pathlib import Path

import pytest

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.registry import base_policy_name, check_policy_name, checkpoint_in, find_policy
from longshore.agents.rehearsals import decision_rehearsals_of
from longshore.agents.rollouts import Rollout
from longshore.cluster.files.errors import PluginError

FILE = Path(__file__).parents[2] / "checkpoints" / "hetero64-wait-1.zip"
LIMITS = {"": (float("inf"), None), "@20ms": (0.02, None), "@h16": (float("inf"), 16), "@20ms,h16": (0.02, 16)}


@pytest.mark.parametrize("name", ["p.zip", "p@1.zip", "p@20ms.zip"])
@pytest.mark.parametrize("folder", [".", "ada@corp.example", "a@20ms", "x@h3/y@"])
def test_a_checkpoint_and_its_limits_are_found_below_any_folder(folder: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(FILE, path)
    schema, rehearsed = load_policy(path).schema, decision_rehearsals_of(f"rollout:{FILE}")
    for limits, (budget_s, horizon) in LIMITS.items():
        given = f"rollout:{path}{limits}"
        check_policy_name(given)
        assert base_policy_name(given) == base_policy_name(f"rollout:{given}@h2") == str(path)
        assert checkpoint_in(given) == path
        assert decision_rehearsals_of(given) == rehearsed
        policy = find_policy(given)
        assert isinstance(policy, Rollout)
        assert (policy.search.budget_s, policy.search.horizon) == (budget_s, horizon)
        assert policy.base.schema == schema  # type: ignore[attr-defined]
        assert policy.name == f"rollout:{Path(name).stem}{limits}"


@pytest.mark.parametrize("base", ["patient", "patient@0.8", "patient@1", "eft"])
@pytest.mark.parametrize("limits", ["", "@20ms"])
def test_a_heuristic_with_a_factor_is_a_base_like_any_other(base: str, limits: str) -> None:
    check_policy_name(f"rollout:{base}{limits}")
    policy = find_policy(f"rollout:{base}{limits}")
    assert isinstance(policy, Rollout)
    assert policy.base.name == base
    assert policy.name == f"rollout:{base}{limits}"
    assert decision_rehearsals_of(f"rollout:{base}{limits}") == decision_rehearsals_of("rollout:patient")


@pytest.mark.parametrize("name", ["rollout:patient@20", "rollout:eft@0.8", "rollout:eft@", "rollout:x@y/p.zip@20"])
def test_what_is_no_limit_is_refused_before_anything_is_loaded(name: str) -> None:
    for refuse in (check_policy_name, find_policy):
        with pytest.raises(PluginError, match="rollout:patient@20ms"):
            refuse(name)
