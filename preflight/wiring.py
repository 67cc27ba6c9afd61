"""The check of the wiring against a file, and learning that file.

Longshore does not query transceivers and switches itself, as that differs from site to site. A tool of the site reports
transceivers, lanes and neighbours in a JSON file.

Source: SPEC C3: physical state, bit error rate and loss of lock or signal per lane, transceiver present,
answering, configured and allowed, cable type, neighbour as expected, each held for a minimum time.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ..cluster.files.errors import InputError
from ..cluster.files.output_file import replacing_file, write_text
from ..cluster.files.yaml_file import read_yaml, validated, yaml_text
from .check import Check, CheckFinding, CheckStage, Need, failed, passed, skipped, warned
from .context import Context
from .readers import Port

WIRING_PAGE = "docs/preflight.md"
Word = Annotated[str, Field(max_length=300)]
Index = Annotated[int, Field(ge=0, le=1023)]


class PortPlan(BaseModel, frozen=True, extra="forbid"):
    """The expected state of a network port; an empty field allows anything."""

    rate: Word = ""
    neighbour: Word = ""  # switch and its port
    cable: Word = ""  # such as copper or optical
    transceiver: Word = ""  # part number
    lanes: Annotated[int, Field(ge=0, le=64)] = 0  # 0 for any number
    gpus: tuple[Index, ...] = ()  # that use it; all of the node by default


class NodePlan(BaseModel, frozen=True, extra="forbid"):
    """The expected wiring of a node."""

    gpus: dict[Index, Word] = {}  # UUID of each
    nvlinks: dict[Word, Word] = {}  # PCI address at the other end of each link, named GPU/LINK; any if empty
    ports: dict[Word, PortPlan] = {}


class Blueprint(BaseModel, frozen=True, extra="forbid"):
    """The expected wiring of nodes, and the limits of every link."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    hold_s: Annotated[float, Field(ge=0.0, le=60.0)] = 0.1  # for which each criterion has to hold without interruption
    most_bit_error_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-12  # of a lane
    transceivers: tuple[Word, ...] = ()  # allowed part numbers; any by default
    nodes: dict[Word, NodePlan] = {}

    def gpus_of(self, node: str) -> dict[int, str]:
        """Return the expected UUIDs of a node's GPUs."""
        return self.nodes[node].gpus if node in self.nodes else {}


def read_blueprint(path: Path) -> Blueprint:
    """Read a file of expected wiring.

    Raises:
        InputError: If it cannot be used, naming the line.
    """
    file = read_yaml(path, WIRING_PAGE)
    return validated(file, Blueprint, file.data)


def write_blueprint(path: Path, blueprint: Blueprint) -> None:
    """Write a file of expected wiring, and replace an older one.

    Raises:
        InputError: If it cannot be written.
    """
    text = yaml_text(blueprint.model_dump(mode="json"))
    with replacing_file(path) as part:
        write_text(part, text)


MAX_FACTS_BYTES = 10 << 20


class Lane(BaseModel, frozen=True, extra="forbid"):
    """One lane of a link; None is unknown."""

    bit_error_rate: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    lock: bool | None = None
    signal: bool | None = None


class PortFacts(BaseModel, frozen=True, extra="forbid"):
    """What the site's tool reports of a port; None is unknown."""

    present: bool | None = None  # there is a transceiver
    answering: bool | None = None
    configured: bool | None = None
    transceiver: Word | None = None  # part number
    cable: Word | None = None
    neighbour: Word | None = None
    lanes: Annotated[tuple[Lane, ...], Field(max_length=64)] = ()


_FILE = TypeAdapter(dict[Word, PortFacts])
NO_FACTS = PortFacts()


def read_port_facts(path: Path | None) -> dict[str, PortFacts]:
    """Read what the site's tool reports of each port, by its name; nothing without a file.

    Raises:
        InputError: If the file cannot be used.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FACTS_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "does the site's tool write it?", path=path) from error
    if len(content) > MAX_FACTS_BYTES:
        raise InputError(f"the file has more than {MAX_FACTS_BYTES} bytes", "is it the right file?", path=path)
    try:
        return _FILE.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(first["msg"], "docs/preflight.md has the format", path=path, field=field) from error


CABLE, TRANSCEIVER = "replace the cable", "reseat or replace the transceiver"
REPLUG = "plug the cable in as the wiring file expects, or learn the wiring again"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of a link at one moment."""

    name: str
    holds: bool | None  # None if unknown
    got: str
    wanted: str
    action: str


def criteria_of(plan: PortPlan, port: Port | None, facts: PortFacts, blueprint: Blueprint) -> list[Criterion]:
    """Return all criteria of a port."""
    return [
        _state_criterion(plan, port),
        *_transceiver_criteria(plan, facts, blueprint),
        _equality_criterion("cable type", facts.cable, plan.cable, CABLE),
        _equality_criterion("neighbour", facts.neighbour, plan.neighbour, REPLUG),
        *_lane_criteria(plan, facts.lanes, blueprint.most_bit_error_rate),
    ]


def _state_criterion(plan: PortPlan, port: Port | None) -> Criterion:
    wanted = f"ACTIVE, LinkUp, {plan.rate or 'any rate'}"
    if port is None:
        return Criterion("physical state", False, "the port is not there", wanted, "reseat or replace the card")  # noqa: FBT003
    holds = port.state == "ACTIVE" and port.physical == "LinkUp" and plan.rate in ("", port.rate)
    return Criterion("physical state", holds, f"{port.state}, {port.physical}, {port.rate}", wanted, CABLE)


def _transceiver_criteria(plan: PortPlan, facts: PortFacts, blueprint: Blueprint) -> Iterator[Criterion]:
    for name, holds in (("present", facts.present), ("answering", facts.answering), ("configured", facts.configured)):
        yield Criterion(f"transceiver {name}", holds, f"not {name}", name, TRANSCEIVER)
    allowed = (plan.transceiver,) if plan.transceiver else blueprint.transceivers
    holds = None if facts.transceiver is None or not allowed else facts.transceiver in allowed
    wanted = " or ".join(allowed[:5])
    yield Criterion("transceiver allowed", holds, facts.transceiver or "", wanted, "use an allowed one")


def _equality_criterion(name: str, found: str | None, planned: str, action: str) -> Criterion:
    return Criterion(name, None if found is None or not planned else found == planned, found or "", planned, action)


def _lane_criteria(plan: PortPlan, lanes: tuple[Lane, ...], max_bit_error_rate: float) -> Iterator[Criterion]:
    if plan.lanes and lanes:
        yield Criterion("lanes", len(lanes) == plan.lanes, f"{len(lanes)} lanes", f"{plan.lanes} lanes", CABLE)
    for at, lane in enumerate(lanes):
        rate = lane.bit_error_rate
        fine = None if rate is None else rate <= max_bit_error_rate
        yield Criterion(f"bit error rate of lane {at}", fine, f"{rate}", f"at most {max_bit_error_rate:g}", CABLE)
        yield Criterion(f"lock of lane {at}", lane.lock, "lost", "locked", TRANSCEIVER)
        yield Criterion(f"signal of lane {at}", lane.signal, "lost", "a signal", TRANSCEIVER)


class CriterionHistory:
    """Which criteria of a link have held at every sample."""

    def __init__(self) -> None:
        self._worst: dict[str, Criterion] = {}
        self._broke_s: dict[str, float] = {}
        self._began_s: float | None = None

    def add(self, criteria: Iterable[Criterion], now_s: float) -> None:
        """Add a sample."""
        self._began_s = now_s if self._began_s is None else self._began_s
        for new in criteria:
            worst = self._worst.get(new.name)
            if worst is None or worst.holds is not False:
                self._worst[new.name] = new if new.holds is not None or worst is None else worst
            if new.holds is False:
                self._broke_s.setdefault(new.name, now_s - self._began_s)

    def broken(self) -> Mapping[str, tuple[Criterion, float]]:
        """Return the criteria that did not hold at some sample, and how long after the first sample that was."""
        return {name: (self._worst[name], at_s) for name, at_s in self._broke_s.items()}

    def unknown(self) -> list[str]:
        """Return the criteria that no tool reported."""
        return [name for name, criterion in self._worst.items() if criterion.holds is None]


HOLD_POLL_S = 0.02  # between two samples
LEARN = "learn the wiring again if that is intended"


def check_wiring(context: Context) -> Iterator[CheckFinding]:
    """Sample all ports and links for a time, and report the criteria that did not hold throughout."""
    blueprint = context.blueprint() or Blueprint()
    plan = blueprint.nodes.get(context.node)
    if plan is None:
        yield skipped(f"the file of expected wiring has no node {context.node}")
        return
    yield from _check_nvlinks(plan, context)
    histories = {name: CriterionHistory() for name in plan.ports}
    ports = _sample_ports(plan, blueprint, histories, context)
    for name, history in histories.items():
        used = not plan.ports[name].gpus or bool(set(plan.ports[name].gpus) & set(context.chosen.gpus))
        yield from _judge_port(name, history, blueprint.hold_s, used=used)
    for name in ports:
        if name not in plan.ports:
            yield warned(name, "a port", "none, as the wiring has none there", LEARN)


def _sample_ports(
    plan: NodePlan, blueprint: Blueprint, histories: dict[str, CriterionHistory], context: Context
) -> list[str]:
    """Add samples until the time is over, and return the ports that are there."""
    until_s = time.monotonic() + blueprint.hold_s
    while True:
        ports = {port.name: port for port in context.ports()}
        facts, now_s = read_port_facts(context.setup.port_facts), time.monotonic()
        for name, history in histories.items():
            history.add(criteria_of(plan.ports[name], ports.get(name), facts.get(name, NO_FACTS), blueprint), now_s)
        if now_s >= until_s:
            return list(ports)
        time.sleep(min(HOLD_POLL_S, max(0.0, until_s - now_s)))


def _judge_port(name: str, history: CriterionHistory, hold_s: float, *, used: bool) -> Iterator[CheckFinding]:
    report = failed if used else warned
    for what, (broken, at_s) in history.broken().items():
        after = "" if at_s == 0.0 else f" after {at_s:.2f} s"
        yield report(f"{name} {what}", f"{broken.got}{after}", f"{broken.wanted}, for {hold_s:g} s", broken.action)
    unknown = history.unknown()
    if unknown:
        yield skipped(f"unknown: {', '.join(unknown)}", name)
    elif not history.broken():
        yield passed(name)


def _check_nvlinks(node_plan: NodePlan, context: Context) -> Iterator[CheckFinding]:
    """Compare the other end of each link between GPUs with the expected one."""
    if context.gpu_reader is None or not node_plan.nvlinks:
        return
    seen = _nvlink_ends(context)
    for name, remote in node_plan.nvlinks.items():
        gpu = name.partition("/")[0]
        report = failed if gpu.isdecimal() and int(gpu) in context.chosen.gpus else warned
        if remote and seen.get(name, "") != remote.lower():
            yield report(f"nvlink {name}", f"to {seen.get(name) or 'nothing'}", f"to {remote}", LEARN)


def _nvlink_ends(context: Context) -> dict[str, str]:
    reader = context.gpu_reader
    if reader is None:
        return {}
    return {
        f"{gpu.index}/{link.link}": link.remote_pci.lower()
        for gpu in reader.gpus()
        for link in reader.nvlinks(gpu.index) or ()
    }


def report_inventory(context: Context) -> Iterator[CheckFinding]:
    """Report all parts, each as a piece of a blueprint."""
    reader = context.gpu_reader
    for gpu in () if reader is None else reader.gpus():
        yield passed(f"gpus {gpu.index}", text=gpu.uuid)
    for name, remote in _nvlink_ends(context).items():
        yield passed(f"nvlinks {name}", text=remote)
    facts = read_port_facts(context.setup.port_facts)
    for port in context.ports():
        yield passed(f"ports {port.name}", text=_port_plan(port, facts.get(port.name, NO_FACTS)).model_dump_json())


def _port_plan(port: Port, facts: PortFacts) -> PortPlan:
    return PortPlan(
        rate=port.rate, neighbour=facts.neighbour or "", cable=facts.cable or "",
        transceiver=facts.transceiver or "", lanes=len(facts.lanes),
    )  # fmt: skip


def node_plan_of(findings: list[CheckFinding]) -> NodePlan:
    """Return the plan of a node, from what `report_inventory` found."""
    parts: dict[str, dict[str, object]] = {"gpus": {}, "nvlinks": {}, "ports": {}}
    for finding in findings:
        kind, _, name = finding.device.partition(" ")
        if kind in parts:
            parts[kind][name] = json.loads(finding.text) if kind == "ports" else finding.text
    return NodePlan.model_validate(parts)


WIRING_CHECK = Check(
    "wiring", 0, "ports, transceivers, lanes, cables and neighbours are as a file expects", 2.0, check_wiring,
    (Need.WIRING,), is_extendable=True,
)  # fmt: skip
SEEN_CHECK = Check(
    "wiring.seen", 0, "reports all parts, to learn the wiring", 5.0, report_inventory, (), CheckStage.ON_REQUEST
)


def learned_blueprint(before: Blueprint, seen: Mapping[str, NodePlan]) -> tuple[Blueprint, list[str]]:
    """Return a blueprint of what is seen, and a line for each part that differs from the one before.

    Nodes that were not seen stay as they were. The GPUs that a port serves stay, too.
    """
    nodes, changes = dict(before.nodes), list[str]()
    for node, plan in seen.items():
        known = before.nodes.get(node, NodePlan())
        ports = {
            name: port.model_copy(update={"gpus": known.ports[name].gpus}) if name in known.ports else port
            for name, port in plan.ports.items()
        }
        nodes[node] = plan.model_copy(update={"ports": ports})
        changes += _changed_parts(node, known, nodes[node])
    return before.model_copy(update={"nodes": nodes}), changes


def _changed_parts(node: str, before: NodePlan, now: NodePlan) -> Iterator[str]:
    was, has = _part_texts(before), _part_texts(now)
    for part in dict.fromkeys((*was, *has)):
        if part not in was:
            yield f"{node} {part}: added, {has[part]}"
        elif part not in has:
            yield f"{node} {part}: removed, it was {was[part]}"
        elif was[part] != has[part]:
            yield f"{node} {part}: {was[part]} became {has[part]}"


def _part_texts(plan: NodePlan) -> dict[str, str]:
    """Return a text for each part of a node."""
    ports = {}
    for name, port in plan.ports.items():
        known = {field: value for field, value in port.model_dump().items() if value and field != "gpus"}
        ports[f"port {name}"] = ", ".join(f"{field} {value}" for field, value in known.items()) or "a port"
    return {
        **{f"gpu {index}": uuid or "a GPU" for index, uuid in plan.gpus.items()},
        **{f"nvlink {name}": f"to {remote or 'anything'}" for name, remote in plan.nvlinks.items()},
        **ports,
    }
