"""Criteria of links, how long they hold, and a blueprint that learns."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.preflight.check import CheckOutcome
from longshore.preflight.readers import NvLink, Port
from longshore.preflight.wiring import (
    Blueprint,
    Criterion,
    CriterionHistory,
    Lane,
    NodePlan,
    PortFacts,
    PortPlan,
    criteria_of,
    learned_blueprint,
    node_plan_of,
    read_blueprint,
    read_port_facts,
    write_blueprint,
)
from tests.preflight.gpus import ask, gpu, node, write_port

GOOD = Lane(bit_error_rate=1e-15, lock=True, signal=True)
FACTS = PortFacts(
    present=True, answering=True, configured=True, transceiver="MCP4Y10", cable="copper", neighbour="leaf1/7",
    lanes=(GOOD,) * 4,
)  # fmt: skip
PLAN = PortPlan(rate="400", neighbour="leaf1/7", cable="copper", lanes=4)
PORT = Port("mlx5_0/1", "ACTIVE", "LinkUp", "400", {})
PRINT = Blueprint(transceivers=("MCP4Y10", "MCP4Y20"))


def broken(port: Port | None, changed: Mapping[str, object]) -> set[str]:
    facts = FACTS.model_copy(update=dict(changed))
    return {it.name for it in criteria_of(PLAN, port, facts, PRINT) if it.holds is False}


def test_a_link_as_planned_keeps_every_criterion() -> None:
    assert all(it.holds for it in criteria_of(PLAN, PORT, FACTS, PRINT))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"present": False}, "transceiver present"),
        ({"answering": False}, "transceiver answering"),
        ({"configured": False}, "transceiver configured"),
        ({"transceiver": "cheap"}, "transceiver allowed"),
        ({"cable": "optical"}, "cable type"),
        ({"neighbour": "leaf2/7"}, "neighbour"),
        ({"lanes": (GOOD,) * 2}, "lanes"),
        ({"lanes": (GOOD, GOOD, Lane(bit_error_rate=1e-8), GOOD)}, "bit error rate of lane 2"),
        ({"lanes": (GOOD, Lane(lock=False), GOOD, GOOD)}, "lock of lane 1"),
        ({"lanes": (Lane(signal=False), GOOD, GOOD, GOOD)}, "signal of lane 0"),
    ],
)
def test_each_criterion_breaks_by_itself_and_has_an_action(changed: Mapping[str, object], name: str) -> None:
    assert broken(PORT, changed) == {name}
    facts = FACTS.model_copy(update=dict(changed))
    (it,) = [it for it in criteria_of(PLAN, PORT, facts, PRINT) if it.holds is False]
    assert it.got
    assert it.wanted
    assert it.action


DOWN = [("INIT", "LinkUp", "400"), ("ACTIVE", "Polling", "400"), ("ACTIVE", "LinkUp", "100"), ("", "", "")]


@pytest.mark.parametrize("port", [None, *(Port("p", *states, {}) for states in DOWN)])
def test_the_physical_state_is_a_criterion(port: Port | None) -> None:
    assert broken(port, {}) == {"physical state"}


def test_a_criterion_without_reports_is_neither_kept_nor_broken() -> None:
    criteria = criteria_of(PLAN, PORT, PortFacts(), PRINT)
    assert {it.holds for it in criteria} == {True, None}


@given(st.lists(st.sampled_from([True, False, None]), min_size=1))
def test_a_criterion_has_to_hold_at_every_sample(samples: list[bool | None]) -> None:
    held = CriterionHistory()
    for at, holds in enumerate(samples):
        held.add([Criterion("lock", holds, "lost", "locked", "")], float(at))
    is_broken = False in samples
    assert set(held.broken()) == ({"lock"} if is_broken else set())
    if is_broken:
        assert held.broken()["lock"][1] == samples.index(False)
    assert held.unknown() == (["lock"] if set(samples) == {None} else [])


def planned(folder: Path, text: str, facts: Mapping[str, object] | None = None) -> dict[str, CheckOutcome]:
    (folder / "wiring.yaml").write_text(text)
    reported = None
    if facts is not None:
        reported = folder / "facts.json"
        reported.write_text(json.dumps(facts))
    context = node(folder, [gpu(0), gpu(1)], wiring=folder / "wiring.yaml", port_facts=reported)
    return {it.device: it.outcome for it in ask(context, "wiring")}


def test_a_check_names_port_and_criterion_and_only_reports_ports_of_others(tmp_path: Path) -> None:
    for name in ("mlx5_0/1", "mlx5_1/1", "mlx5_9/1"):
        write_port(tmp_path / "infiniband", name)
    text = """
    hold_s: 0.05
    nodes: {n1: {ports: {
      mlx5_0/1: {neighbour: leaf1/7}, mlx5_1/1: {neighbour: leaf1/8, gpus: [5]}, mlx5_2/1: {}}}}"""
    wrong = {"mlx5_0/1": {"neighbour": "leaf3/1"}, "mlx5_1/1": {"neighbour": "leaf3/2"}}
    found = planned(tmp_path, text, wrong)
    assert found["mlx5_0/1 neighbour"] is CheckOutcome.FAIL
    assert found["mlx5_1/1 neighbour"] is CheckOutcome.WARN
    assert found["mlx5_2/1 physical state"] is CheckOutcome.FAIL
    assert found["mlx5_9/1"] is CheckOutcome.WARN


def test_the_other_end_of_a_link_between_gpus_is_held_against_the_plan(tmp_path: Path) -> None:
    found = planned(tmp_path, 'nodes: {n1: {nvlinks: {0/3: "0000:10:00.0", 7/1: "0000:10:00.0"}}}')
    assert found == {"nvlink 0/3": CheckOutcome.FAIL, "nvlink 7/1": CheckOutcome.WARN}


@pytest.mark.parametrize(
    ("there", "planned_end", "is_good"),
    [
        ("00000000:1B:00.0", '""', True), ("", '""', True), ("00000000:1B:00.0", "00000000:1b:00.0", True),
        ("00000000:1b:00.0", "00000000:1B:00.0", True), ("", "00000000:1b:00.0", False),
        ("00000000:1C:00.0", "00000000:1b:00.0", False),
    ],
)  # fmt: skip
def test_an_empty_end_of_a_link_allows_any_and_the_case_of_an_address_is_no_difference(
    there: str, planned_end: str, *, is_good: bool, tmp_path: Path
) -> None:
    (tmp_path / "wiring.yaml").write_text(f"nodes: {{n1: {{nvlinks: {{0/0: {planned_end!s}}}}}}}")
    one = gpu(0)
    one.nvlinks = [NvLink(0, active=bool(there), remote_pci=there)]
    context = node(tmp_path, [one], wiring=tmp_path / "wiring.yaml")
    assert {it.outcome for it in ask(context, "wiring")} == (set() if is_good else {CheckOutcome.FAIL})


def test_what_is_seen_is_learned_and_parts_that_come_and_go_are_reported(tmp_path: Path) -> None:
    write_port(tmp_path / "infiniband", "mlx5_0/1")
    context, path = node(tmp_path, [gpu(0), gpu(1)]), tmp_path / "learned.yaml"
    first, changes = learned_blueprint(Blueprint(), {"n1": node_plan_of(ask(context, "wiring.seen"))})
    assert changes[:1] == ["n1 gpu 0: added, GPU-0"]
    assert len(changes) == 3
    write_blueprint(path, first)
    assert read_blueprint(path) == first
    assert planned(tmp_path, path.read_text()) == {"mlx5_0/1": CheckOutcome.SKIPPED}  # its transceiver is unknown
    seen = NodePlan(gpus={0: "GPU-0", 1: "GPU-new"}, ports={"mlx5_1/1": PortPlan()})
    second, changes = learned_blueprint(first, {"n1": seen, "n2": NodePlan()})
    assert {it.partition(",")[0] for it in changes} == {
        "n1 gpu 1: GPU-1 became GPU-new", "n1 port mlx5_0/1: removed", "n1 port mlx5_1/1: added",
    }  # fmt: skip
    assert learned_blueprint(second, {"n1": seen}) == (second, [])


GPUS = st.dictionaries(st.integers(0, 3), st.sampled_from("xy"))
PLANS = st.dictionaries(st.sampled_from("abc"), st.builds(NodePlan, gpus=GPUS))


@given(PLANS, PLANS)
def test_learning_twice_changes_nothing_more_and_leaves_other_nodes(
    before: dict[str, NodePlan], seen: dict[str, NodePlan]
) -> None:
    old = Blueprint(nodes=before)
    learned, _ = learned_blueprint(old, seen)
    assert learned_blueprint(learned, seen) == (learned, [])
    assert {node: learned.nodes[node] for node in before if node not in seen} == {
        node: plan for node, plan in before.items() if node not in seen
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", "version: 2", "hold_s: -1", "hold_s: .nan", "nodes: {n1: {ports: {p: {lanes: 99}}}}", "nodes: {n1: 3}",
     "colour: red", "nodes: {n1: {gpus: {x: y}}}", "most_bit_error_rate: 0", "a: b: c"],
)  # fmt: skip
def test_a_plan_that_cannot_be_used_is_reported_with_its_path(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wiring.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"wiring\.yaml"):
        read_blueprint(path)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"p": {"colour": 1}}', b'{"p": {"lanes": [{"bit_error_rate": 2}]}}',
                                     b"\xff", b"[" * 100_000, b'{"p": 3}'])  # fmt: skip
def test_facts_that_cannot_be_used_are_reported_with_their_path(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"facts\.json"):
        read_port_facts(path)
    with pytest.raises(InputError, match=r"facts\.json"):
        read_port_facts(tmp_path / "none" / "facts.json")
