"""Whether the wiring is as a file expects it, and what it is, for a file that is to be learned.

Source: SPEC C3.
"""

import json
import time
from collections.abc import Iterator

from ..check import Check, Finding, Need, Stage, failed, passed, skipped, warned
from ..context import Context
from ..readers.ports import Port
from ..wiring.blueprint import Blueprint, NodePlan, PortPlan
from ..wiring.criteria import Held, criteria_of
from ..wiring.facts import NOTHING, PortFacts, read_facts

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
