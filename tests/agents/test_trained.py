"""The training conditions of a policy are kept with it, and reported where its use differs."""

import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import load_policy, policy_of, save_policy, schema_of, untrained_network
from longshore.agents.learned.network import LearnedPolicy
from longshore.agents.learned.schema import (
    TrainedUnder,
    UsedUnder,
    conditions_of_training,
    conditions_of_use,
    training_mismatch,
)
from longshore.agents.registry import find_policy
from longshore.cluster.model.problem import ORDERS, Rules
from tests.batches import RULES

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
ORDER = st.sampled_from(sorted(ORDERS))
AGEING_H = st.none() | st.floats(0.0, 1e4)
ESTIMATES = st.sampled_from(["exact", "log-normal", "class-mean", "mixed", "trace", "users"])
TRAINED = st.builds(
    TrainedUnder, orders=st.lists(ORDER, min_size=1, max_size=3, unique=True).map(tuple), ageing_h=AGEING_H,
    waiting=st.booleans(), estimates=ESTIMATES, oracle=st.booleans(),
)  # fmt: skip
USE = st.builds(UsedUnder, ORDER.map(lambda order: (order,)), AGEING_H, st.booleans(), ESTIMATES, st.booleans())


def trained_under(trained: TrainedUnder | None) -> LearnedPolicy:
    schema = schema_of(
        algorithm="ppo", network="set", action="node", observation="full", waiting=False, node_gpus=(8,),
        trained=trained,
    )  # fmt: skip
    return policy_of("mine", schema, untrained_network(schema))


@given(TRAINED)
def test_nothing_is_said_where_a_policy_is_used_as_it_was_trained(trained: TrainedUnder) -> None:
    policy = trained_under(trained)
    for order in trained.orders:
        use = UsedUnder((order,), trained.ageing_h, trained.waiting, trained.estimates, trained.oracle)
        assert training_mismatch(policy, use) == ""


@given(TRAINED, USE)
def test_each_thing_that_differs_is_said_in_one_line(trained: TrainedUnder, use: UsedUnder) -> None:
    remark = training_mismatch(trained_under(trained), use)
    differing = {
        "order": use.orders[0] not in trained.orders,
        "ageing": trained.ageing_h != use.ageing_h,
        "waiting": trained.waiting != use.waiting,
        "estimates": trained.estimates not in ("mixed", use.estimates),
        "fault rates": trained.oracle != use.oracle,
    }
    assert "\n" not in remark
    assert bool(remark) == any(differing.values())
    assert {name: name in remark for name in differing} == differing


@given(TRAINED)
def test_a_checkpoint_keeps_it(tmp_path_factory: pytest.TempPathFactory, trained: TrainedUnder) -> None:
    path = tmp_path_factory.mktemp("kept") / "mine.zip"
    policy = trained_under(trained)
    save_policy(path, policy.schema, policy.network)
    assert conditions_of_training(load_policy(path)) == trained


def test_a_checkpoint_that_does_not_say_is_loaded_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    policy = trained_under(None)
    save_policy(tmp_path / "new.zip", policy.schema, policy.network)
    with zipfile.ZipFile(tmp_path / "new.zip") as new, zipfile.ZipFile(tmp_path / "old.zip", "w") as old:
        schema = json.loads(new.read("schema.json"))
        del schema["trained"]
        old.writestr("schema.json", json.dumps(schema))
        old.writestr("weights.npz", new.read("weights.npz"))
    found = load_policy(tmp_path / "old.zip")
    assert conditions_of_training(found) is None
    use = conditions_of_use(RULES, "exact")
    assert training_mismatch(found, use) == training_mismatch(HEURISTICS["pack"], use) == ""


@pytest.mark.parametrize("path", sorted(CHECKPOINTS.glob("*.zip")), ids=lambda path: path.stem)
def test_each_shipped_checkpoint_says_what_its_card_says(path: Path) -> None:
    trained, card = conditions_of_training(load_policy(path)), path.with_suffix(".md").read_text(encoding="utf-8")
    assert trained is not None
    command = next(line for line in card.splitlines() if line.startswith("| command |"))
    assert trained.oracle == ("--oracle" in command)
    assert trained.waiting == ("--waiting" in command or path.stem == "traces")  # as the preset has it
    orders = [part.split()[0] for part in command.replace("`", " ").split("--order ")[1:]]
    assert trained.orders == (tuple(orders) or ("fifo",))
    assert trained.ageing_h == (168.0 if "--ageing 168h" in command else None)


def test_rollouts_were_trained_as_their_base() -> None:
    path = CHECKPOINTS / "traces.zip"
    assert conditions_of_training(find_policy(f"rollout:{path}@h4")) == conditions_of_training(load_policy(path))


@given(order=ORDER, ageing_s=st.none() | st.floats(0.0, 1e9), waiting=st.booleans(), oracle=st.booleans())
def test_rules_say_what_policies_are_used_under(
    order: str, ageing_s: float | None, *, waiting: bool, oracle: bool
) -> None:
    rules: Rules = RULES._replace(
        order=ORDERS[order], ageing_s=float("inf") if ageing_s is None else ageing_s, waiting=waiting,
        estimated_hazards=not oracle,
    )  # fmt: skip
    use = conditions_of_use(rules, "exact")
    assert use == UsedUnder((order,), None if ageing_s is None else ageing_s / 3600.0, waiting, "exact", oracle)
