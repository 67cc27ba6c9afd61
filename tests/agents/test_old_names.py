"""What earlier versions wrote is read as if it had today's names."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.learned.old_names import todays_name, with_todays_names
from longshore.agents.learned.schema import Schema
from longshore.training.config import TrainingConfig, config_of
from tests.agents.untrained import untrained

OLD = {"candidates": "moves", "patent": "source", "patent-literal": "source-literal"}


@pytest.mark.parametrize(("network", "action", "observation"), [
    ("candidates", "candidate", "full"), ("mlp", "gpu", "patent"), ("mlp", "gpu", "patent-literal"),
])  # fmt: skip
def test_a_checkpoint_with_old_names_is_the_same_policy(
    network: str, action: str, observation: str, tmp_path: Path
) -> None:
    from longshore.agents.learned.checkpoint import save_policy

    policy = untrained(network, action=action, observation=observation)
    new, old = tmp_path / "new.zip", tmp_path / "old.zip"
    save_policy(new, policy.schema, policy.network)
    with zipfile.ZipFile(new) as read, zipfile.ZipFile(old, "w") as written:
        for name in read.namelist():
            content = read.read(name)
            if name == "schema.json":
                schema = json.loads(content)
                schema |= {field: OLD.get(schema[field], schema[field]) for field in ("network", "observation")}
                schema["globals"] = [OLD.get(each, each) for each in schema["globals"]]
                assert schema != json.loads(content)
                content = json.dumps(schema).encode()
            written.writestr(name, content)
    loaded = load_policy(old)
    assert loaded.schema == policy.schema == Schema.model_validate_json(policy.schema.model_dump_json())
    for mine, theirs in zip(policy.network.parameters(), loaded.network.parameters(), strict=True):
        assert np.array_equal(mine.detach().numpy(), theirs.detach().numpy())


def test_options_and_configurations_with_old_names_are_those_of_today() -> None:
    asked = {
        "algorithm": "ppo", "steps": 1e5, "seed": 0, "network": None, "action": None, "reward": None,
        "waiting": False, "threads": 1,
    }  # fmt: skip
    old = config_of(preset="source4", observation="source-literal", **asked)  # type: ignore[arg-type]
    new = config_of(preset="patent4-ours", observation="patent-literal", **asked)  # type: ignore[arg-type]
    assert old == new
    kept = {**new.model_dump(), "preset": "source4", "observation": "source-literal"}
    assert TrainingConfig.model_validate(kept) == new


def test_other_values_stay_as_they_are() -> None:
    assert with_todays_names(["moves"]) == ["moves"]
    assert with_todays_names({"network": 3, "algorithm": "moves"}) == {"network": 3, "algorithm": "moves"}
    assert todays_name("network", "set") == "set"
