"""What a command writes can be read back, whatever names and numbers are in it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from longshore.cluster.files.output_file import encodable_text, write_text
from longshore.cluster.model.outcome import Event
from longshore.cluster.model.problem import stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.training_plan import PlanFile, StagePlan
from longshore.cluster.model.workload import workload_of
from longshore.cluster.traces.write import write_events, write_jobs
from longshore.planner.execution.plan_file import read_plan, write_plan
from longshore.planner.execution.worker import MeasuredTraining
from longshore.planner.hardware import DEFAULT, HardwareProfile, read_hardware, write_hardware
from longshore.preflight.check import warned
from longshore.preflight.warm_worker import decode_reply, encode_reply
from longshore.preflight.wiring import Blueprint, NodePlan, PortPlan, read_blueprint, write_blueprint
from longshore.ring import wire
from longshore.ring.state import read_state, write_state
from longshore.scheduler.backends.local import ranks
from longshore.scheduler.backends.local.ranks import RankPlace, Spec
from longshore.scheduler.policy_host.messages import Failed, read_message
from longshore.training.config import TrainingConfig
from longshore.training.validation import LATER, LaterComparison, write_comparisons

ODD = (
    "1e3", "0x1f", "0o7", "1:30", "2026-01-01", "null", "~", "yes", "off", "-", "- a", "a: b", "# a", "&a", "*a", "!a",
    "%a", "@a", "`a", "'", '"', "\\", "{}", "[]", " a ", "a\nb", "a\rb", "\t", "\x00", "\x1b[31m",
    "\x85", "\u2028", "\ufeff",
    "\ud800", "caf\udce9", "a folder/with space", "日本 🏖", ".nan", "<<", "=", "a" * 200,
)  # fmt: skip


def plan(folder: Path, name: str) -> tuple[Any, Any]:
    it = PlanFile(
        model=name, hardware=name, data=1, pipeline=1, micro_batch=1, batch=1, stages=(StagePlan(layers=(name,)),)
    )
    write_plan(folder / "plan.json", it)
    return it, read_plan(folder / "plan.json")


def hardware(folder: Path, name: str) -> tuple[Any, Any]:
    it = HardwareProfile.model_validate(DEFAULT.model_dump() | {"name": name, "not_identified": (name, name)})
    write_hardware(folder / "hardware.yaml", it)
    return it, read_hardware(folder / "hardware.yaml")


def wiring(folder: Path, name: str) -> tuple[Any, Any]:
    port = PortPlan(rate=name, neighbour=name, cable=name)
    node = NodePlan(gpus={0: name}, nvlinks={name: name}, ports={name: port, "other": port})
    it = Blueprint(nodes={name: node, "other": node}, transceivers=(name, name))
    write_blueprint(folder / "wiring.yaml", it)
    return it, read_blueprint(folder / "wiring.yaml")


def events(folder: Path, name: str) -> tuple[Any, Any]:
    write_events(folder / "events.json", [Event(1.5, "start", 0, (3,))], [name])
    found = [json.loads(line) for line in (folder / "events.json").read_text().splitlines()]
    return [{"time": 1.5, "event": "start", "job": name, "gpus": [3]}], found


def report(folder: Path, name: str) -> tuple[Any, Any]:
    write_text(folder / "report.json", json.dumps({name: [name]}, ensure_ascii=False))
    return {name: [name]}, json.loads((folder / "report.json").read_text(encoding="utf-8"))


def state(folder: Path, name: str) -> tuple[Any, Any]:
    it = {"state": {name: torch.Size([1])}, "layers": [[name]]}
    with (folder / "stage-0.pt").open("wb") as file:
        write_state(it, file)
    return it, read_state(folder / "stage-0.pt")


def message(folder: Path, name: str) -> tuple[Any, Any]:
    del folder
    return wire.MemberGone(5, name), wire.decode(wire.encode(wire.MemberGone(5, name)))


def later(folder: Path, name: str) -> tuple[Any, Any]:
    it = LaterComparison(name, 1, -2.5, math.nan, math.inf, 1.0, rival=f"a{name}")
    write_comparisons(folder, (it,))
    (found,) = json.loads((folder / LATER).read_text(), parse_constant=pytest.fail)
    return {**it._asdict(), "low": None, "high": None}, found


def jobs(folder: Path, name: str) -> tuple[Any, Any]:
    workload = workload_of((name,), np.array([1], dtype=np.int32), np.array([60.0]), np.zeros(1))
    scenarios = stack(grid_cluster(1, 1), [workload], fault_seed=np.zeros(1, np.int64), source_rate_per_s=np.zeros(3))
    write_jobs(folder / "jobs.json", scenarios, 0, [name])
    return [{"id": name, "gpus": 1, "work": 60.0, "submit": 0.0}], json.loads((folder / "jobs.json").read_text())


def config(folder: Path, name: str) -> tuple[Any, Any]:
    it = TrainingConfig(preset="traces", steps=1, seed=0, reward="jct", traces=(name,), history=name, init=name)
    (folder / "config.json").write_text(it.as_text(), encoding="ascii")
    return it, TrainingConfig.of_text((folder / "config.json").read_text(encoding="ascii"))


def attempt(folder: Path, name: str) -> tuple[Any, Any]:
    del folder
    it = Spec(name, name, 1, (name,), name, {name: name}, 1.0, None, (RankPlace(name, 0),), visible_gpus=name)
    return it, ranks.decode_spec(ranks.encode_spec(it))


def refusal(folder: Path, name: str) -> tuple[Any, Any]:
    del folder
    it = Failed(number=1, reason=name)
    return it, read_message(it.model_dump_json().encode())


def finding(folder: Path, name: str) -> tuple[Any, Any]:
    del folder
    it = warned(name, name, name, name)
    (found,) = decode_reply(encode_reply(1, [it], 0.0)).findings
    return it, found


WRITERS: dict[str, Callable[[Path, str], tuple[Any, Any]]] = {
    it.__name__: it
    for it in (
        plan,
        hardware,
        wiring,
        events,
        report,
        state,
        message,
        later,
        jobs,
        config,
        attempt,
        refusal,
        finding,
    )
}
TAKE_ANY = (
    "events",
    "report",
    "state",
    "message",
    "later",
    "jobs",
    "config",
    "attempt",
)  # others: what UTF-8 has a form for


@pytest.mark.parametrize("writer", WRITERS)
def test_odd_names_are_read_back(writer: str, tmp_path: Path) -> None:
    for name in ODD:
        written, found = WRITERS[writer](tmp_path, name if writer in TAKE_ANY else encodable_text(name))
        assert found == written, name


names = st.text(min_size=1, max_size=40)


@pytest.mark.parametrize("text", ODD)
def test_what_other_processes_say_is_sent_in_any_case(text: str) -> None:
    """JSON has no form for some of it; a process that cannot say why it ends ends without a word."""
    said = read_message(Failed(number=1, reason=text).model_dump_json().encode())
    assert isinstance(said, Failed)
    assert said.reason == encodable_text(text)
    (found,) = decode_reply(encode_reply(1, [warned(text, text, text, text)], 0.0)).findings
    assert found == warned(*[encodable_text(text)] * 4)


@pytest.mark.parametrize("writer", WRITERS)
@given(name=names)
@example(name="1_0.0")
@example(name="NaN.csv")
def test_any_name_is_read_back(tmp_path_factory: pytest.TempPathFactory, writer: str, name: str) -> None:
    written, found = WRITERS[writer](tmp_path_factory.getbasetemp(), name)
    assert found == written


@given(st.lists(st.floats(width=32)), st.floats(0, 1e300))
def test_losses_that_are_no_numbers_are_read_back_as_none(losses: list[float], step_s: float) -> None:
    it = MeasuredTraining(step_s=step_s, stages=(), losses=tuple(losses))
    text = it.model_dump_json()
    json.loads(text, parse_constant=pytest.fail)  # any reader of JSON takes it
    found = MeasuredTraining.model_validate_json(text)
    assert found.step_s == step_s
    for one, other in zip(losses, found.losses, strict=True):
        assert one == other or (not math.isfinite(one) and math.isnan(other))


def test_text_without_a_form_in_utf_8_takes_the_place_of_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("older")
    write_text(path, "caf\udce9")
    assert path.read_text() == "caf\\udce9"
