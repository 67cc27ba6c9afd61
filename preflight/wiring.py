"""Whether the wiring is as a file expects it, and learning that file.

What a tool of the site tells of transceivers, lanes and neighbours, in a file of JSON.

Longshore does not speak to transceivers and switches itself: what does differs from site to site.

Source: SPEC C3; SPEC C3: physical state, bit error rate and loss of lock or signal per lane, transceiver present,
answering, configured and on a list, cable type, neighbour as expected, each held for a minimum time.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..cluster.files.errors import InputError
from ..cluster.files.output_file import replacing, write_text
from ..cluster.files.yaml_file import read_yaml, validated, yaml_text
from .check import Check, Finding, Need, Stage, failed, passed, skipped, warned
from .context import Context
from .readers import Port

PAGE = "docs/preflight.md"
Word = Annotated[str, Field(max_length=300)]
Index = Annotated[int, Field(ge=0, le=1023)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PortPlan(_Section):
    """What is expected of a network port; what is empty may be anything."""

    rate: Word = ""
    neighbour: Word = ""  # switch and its port
    cable: Word = ""  # such as copper or optical
    transceiver: Word = ""  # part number
    lanes: Annotated[int, Field(ge=0, le=64)] = 0  # 0 for any number
    gpus: tuple[Index, ...] = ()  # that use it; all of the node if left out


class NodePlan(_Section):
    """What is expected of a node."""

    gpus: dict[Index, Word] = {}  # UUID of each
    nvlinks: dict[Word, Word] = {}  # PCI address at the other end of each link, which is named GPU/LINK
    ports: dict[Word, PortPlan] = {}


class Blueprint(_Section):
    """The expected wiring of nodes, and what every link has to keep to."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    hold_s: Annotated[float, Field(ge=0.0, le=60.0)] = 0.1  # for which each criterion has to hold without a break
    most_bit_error_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-12  # of a lane
    transceivers: tuple[Word, ...] = ()  # part numbers that are allowed; any if left out
    nodes: dict[Word, NodePlan] = {}

    def gpus_of(self, node: str) -> dict[int, str]:
        """Return the UUIDs that are expected of a node."""
        return self.nodes[node].gpus if node in self.nodes else {}


def read_blueprint(path: Path) -> Blueprint:
    """Return the wiring that a file expects.

    Raises:
        InputError: If it cannot be used, naming the line.
    """
    file = read_yaml(path, PAGE)
    return validated(file, Blueprint, file.data)


def write_blueprint(path: Path, blueprint: Blueprint) -> None:
    """Write a file of expected wiring, in place of an older one.

    Raises:
        InputError: If it cannot be written.
    """
    text = yaml_text(blueprint.model_dump(mode="json"))
    with replacing(path) as part:
        write_text(part, text)


MOST_BYTES = 10 << 20


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lane(_Told):
    """One lane of a link; None is not told."""

    bit_error_rate: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    lock: bool | None = None
    signal: bool | None = None


class PortFacts(_Told):
    """What is told of a port; None is not told."""

    present: bool | None = None  # there is a transceiver
    answering: bool | None = None
    configured: bool | None = None
    transceiver: Word | None = None  # part number
    cable: Word | None = None
    neighbour: Word | None = None
    lanes: Annotated[tuple[Lane, ...], Field(max_length=64)] = ()


_FILE = TypeAdapter(dict[Word, PortFacts])
NOTHING = PortFacts()


def read_facts(path: Path | None) -> dict[str, PortFacts]:
    """Return what is told of each port, by its name; nothing without a file.

    Raises:
        InputError: If the file cannot be used.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "does the site's tool write it?", path=path) from error
    if len(content) > MOST_BYTES:
        raise InputError(f"the file has more than {MOST_BYTES} bytes", "is it the right file?", path=path)
    try:
        return _FILE.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(first["msg"], "docs/preflight.md says what it holds", path=path, field=field) from error


CABLE, TRANSCEIVER = "replace the cable", "reseat or replace the transceiver"
REPLUG = "plug the cable in as the wiring says, or learn it anew"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of a link at one moment."""

    name: str
    holds: bool | None  # None where it is not told
    got: str
    wanted: str
    action: str


def criteria_of(plan: PortPlan, port: Port | None, facts: PortFacts, blueprint: Blueprint) -> list[Criterion]:
    """Return all criteria of a port.

    Args:
        plan: What is expected of it.
        port: What sysfs tells; None if it is not there.
        facts: What the site's tool tells.
        blueprint: What holds for all ports.
    """
    return [
        _state(plan, port),
        *_transceiver(plan, facts, blueprint),
        _as_planned("cable type", facts.cable, plan.cable, CABLE),
        _as_planned("neighbour", facts.neighbour, plan.neighbour, REPLUG),
        *_lanes(plan, facts.lanes, blueprint.most_bit_error_rate),
    ]


def _state(plan: PortPlan, port: Port | None) -> Criterion:
    wanted = f"ACTIVE, LinkUp, {plan.rate or 'any rate'}"
    if port is None:
        return Criterion("physical state", False, "the port is not there", wanted, "reseat or replace the card")  # noqa: FBT003
    holds = port.state == "ACTIVE" and port.physical == "LinkUp" and plan.rate in ("", port.rate)
    return Criterion("physical state", holds, f"{port.state}, {port.physical}, {port.rate}", wanted, CABLE)


def _transceiver(plan: PortPlan, facts: PortFacts, blueprint: Blueprint) -> Iterator[Criterion]:
    for name, holds in (("present", facts.present), ("answering", facts.answering), ("configured", facts.configured)):
        yield Criterion(f"transceiver {name}", holds, f"not {name}", name, TRANSCEIVER)
    allowed = (plan.transceiver,) if plan.transceiver else blueprint.transceivers
    told = None if facts.transceiver is None or not allowed else facts.transceiver in allowed
    wanted = " or ".join(allowed[:5])
    yield Criterion("transceiver on the list", told, facts.transceiver or "", wanted, "use one of the list")


def _as_planned(name: str, told: str | None, planned: str, action: str) -> Criterion:
    return Criterion(name, None if told is None or not planned else told == planned, told or "", planned, action)


def _lanes(plan: PortPlan, lanes: tuple[Lane, ...], most: float) -> Iterator[Criterion]:
    if plan.lanes and lanes:
        yield Criterion("lanes", len(lanes) == plan.lanes, f"{len(lanes)} lanes", f"{plan.lanes} lanes", CABLE)
    for at, lane in enumerate(lanes):
        rate = lane.bit_error_rate
        fine = None if rate is None else rate <= most
        yield Criterion(f"bit error rate of lane {at}", fine, f"{rate}", f"at most {most:g}", CABLE)
        yield Criterion(f"lock of lane {at}", lane.lock, "lost", "locked", TRANSCEIVER)
        yield Criterion(f"signal of lane {at}", lane.signal, "lost", "a signal", TRANSCEIVER)


class Held:
    """Which criteria of a link have held in every look of a time."""

    def __init__(self) -> None:
        self._worst: dict[str, Criterion] = {}
        self._broke_s: dict[str, float] = {}
        self._began_s: float | None = None

    def look(self, criteria: Iterable[Criterion], now_s: float) -> None:
        """Take what is seen at a moment.

        Args:
            criteria: All of one link.
            now_s: Of a clock that does not go back.
        """
        self._began_s = now_s if self._began_s is None else self._began_s
        for it in criteria:
            worst = self._worst.get(it.name)
            if worst is None or worst.holds is not False:
                self._worst[it.name] = it if it.holds is not None or worst is None else worst
            if it.holds is False:
                self._broke_s.setdefault(it.name, now_s - self._began_s)

    def broken(self) -> Mapping[str, tuple[Criterion, float]]:
        """Return the criteria that did not hold at some look, and how long after the first look that was."""
        return {name: (self._worst[name], at_s) for name, at_s in self._broke_s.items()}

    def not_told(self) -> list[str]:
        """Return the criteria that nobody told of."""
        return [name for name, it in self._worst.items() if it.holds is None]


LOOK_S = 0.02  # between two looks
LEARN = "learn the wiring anew if that is meant"


def as_expected(context: Context) -> Iterator[Finding]:
    """Look at all ports and links again and again for a time, and tell which criteria did not hold all the time."""
    blueprint = context.blueprint() or Blueprint()
    plan = blueprint.nodes.get(context.node)
    if plan is None:
        yield skipped(f"the file of expected wiring has no node {context.node}")
        return
    yield from _links_as_expected(plan, context)
    held = {name: Held() for name in plan.ports}
    ports = _watch(plan, blueprint, held, context)
    for name, it in held.items():
        used = not plan.ports[name].gpus or bool(set(plan.ports[name].gpus) & set(context.chosen.gpus))
        yield from _judge(name, it, blueprint.hold_s, used=used)
    for name in ports:
        if name not in plan.ports:
            yield warned(name, "a port", "none, as the wiring has none there", LEARN)


def _watch(plan: NodePlan, blueprint: Blueprint, held: dict[str, Held], context: Context) -> list[str]:
    """Look until the time is over, and return the ports that are there."""
    until_s = time.monotonic() + blueprint.hold_s
    while True:
        ports = {port.name: port for port in context.ports()}
        facts, now_s = read_facts(context.place.port_facts), time.monotonic()
        for name, it in held.items():
            it.look(criteria_of(plan.ports[name], ports.get(name), facts.get(name, NOTHING), blueprint), now_s)
        if now_s >= until_s:
            return list(ports)
        time.sleep(min(LOOK_S, max(0.0, until_s - now_s)))


def _judge(name: str, held: Held, hold_s: float, *, used: bool) -> Iterator[Finding]:
    tell = failed if used else warned
    for what, (it, at_s) in held.broken().items():
        lasted = "" if at_s == 0.0 else f" after {at_s:.2f} s"
        yield tell(f"{name} {what}", f"{it.got}{lasted}", f"{it.wanted}, for {hold_s:g} s", it.action)
    not_told = held.not_told()
    if not_told:
        yield skipped(f"not told: {', '.join(not_told)}", name)
    elif not held.broken():
        yield passed(name)


def _links_as_expected(plan: NodePlan, context: Context) -> Iterator[Finding]:
    """Hold the other end of each link between GPUs against what is expected."""
    if context.gpu_reader is None or not plan.nvlinks:
        return
    seen = _links(context)
    for name, remote in plan.nvlinks.items():
        gpu = name.partition("/")[0]
        tell = failed if gpu.isdecimal() and int(gpu) in context.chosen.gpus else warned
        if seen.get(name) != remote:
            yield tell(f"nvlink {name}", f"to {seen.get(name) or 'nothing'}", f"to {remote or 'nothing'}", LEARN)


def _links(context: Context) -> dict[str, str]:
    reader = context.gpu_reader
    if reader is None:
        return {}
    return {
        f"{gpu.index}/{link.link}": link.remote_pci.lower()
        for gpu in reader.gpus()
        for link in reader.nvlinks(gpu.index) or ()
    }


def seen(context: Context) -> Iterator[Finding]:
    """Tell of all parts, each as a piece of a blueprint."""
    reader = context.gpu_reader
    for gpu in () if reader is None else reader.gpus():
        yield passed(f"gpus {gpu.index}", text=gpu.uuid)
    for name, remote in _links(context).items():
        yield passed(f"nvlinks {name}", text=remote)
    facts = read_facts(context.place.port_facts)
    for port in context.ports():
        yield passed(f"ports {port.name}", text=_planned(port, facts.get(port.name, NOTHING)).model_dump_json())


def _planned(port: Port, facts: PortFacts) -> PortPlan:
    return PortPlan(
        rate=port.rate, neighbour=facts.neighbour or "", cable=facts.cable or "",
        transceiver=facts.transceiver or "", lanes=len(facts.lanes),
    )  # fmt: skip


def plan_of(findings: list[Finding]) -> NodePlan:
    """Return the plan of a node, of what `seen` told."""
    parts: dict[str, dict[str, object]] = {"gpus": {}, "nvlinks": {}, "ports": {}}
    for it in findings:
        kind, _, name = it.device.partition(" ")
        if kind in parts:
            parts[kind][name] = json.loads(it.text) if kind == "ports" else it.text
    return NodePlan.model_validate(parts)


WIRING = Check(
    "wiring", 0, "ports, transceivers, lanes, cables and neighbours are as a file expects", 2.0, as_expected,
    (Need.WIRING,), goes_on=True,
)  # fmt: skip
SEEN = Check("wiring.seen", 0, "tells of all parts, for a file that is learned", 5.0, seen, (), Stage.ASKED)


@dataclass(frozen=True, slots=True)
class Change:
    """A part that is not as it was; "" for one that is not there."""

    node: str
    part: str
    before: str
    now: str

    @property
    def words(self) -> str:
        """For people, in one line."""
        if not self.before:
            return f"{self.node} {self.part}: added, {self.now}"
        if not self.now:
            return f"{self.node} {self.part}: removed, it was {self.before}"
        return f"{self.node} {self.part}: {self.before} became {self.now}"


def learn(before: Blueprint, seen: Mapping[str, NodePlan]) -> tuple[Blueprint, list[Change]]:
    """Return a blueprint of what is seen, and what differs from the one before.

    Nodes that were not looked at stay as they were. What a port was expected to serve stays, too.

    Args:
        before: What was expected; an empty one at first.
        seen: By node.
    """
    nodes, changes = dict(before.nodes), list[Change]()
    for node, plan in seen.items():
        known = before.nodes.get(node, NodePlan())
        ports = {
            name: port.model_copy(update={"gpus": known.ports[name].gpus}) if name in known.ports else port
            for name, port in plan.ports.items()
        }
        nodes[node] = plan.model_copy(update={"ports": ports})
        changes += _changes(node, known, nodes[node])
    return before.model_copy(update={"nodes": nodes}), changes


def _changes(node: str, before: NodePlan, now: NodePlan) -> Iterator[Change]:
    was, has = _parts(before), _parts(now)
    for part in dict.fromkeys((*was, *has)):
        if was.get(part, "") != has.get(part, ""):
            yield Change(node, part, was.get(part, ""), has.get(part, ""))


def _parts(plan: NodePlan) -> dict[str, str]:
    """Return each part of a node in words."""
    ports = {}
    for name, port in plan.ports.items():
        told = {field: value for field, value in port.model_dump().items() if value and field != "gpus"}
        ports[f"port {name}"] = ", ".join(f"{field} {value}" for field, value in told.items()) or "a port"
    return {
        **{f"gpu {index}": uuid or "a GPU" for index, uuid in plan.gpus.items()},
        **{f"nvlink {name}": f"to {remote or 'nothing'}" for name, remote in plan.nvlinks.items()},
        **ports,
    }
