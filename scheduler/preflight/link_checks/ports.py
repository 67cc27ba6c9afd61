"""Network ports: whether they are up, and whether they had faults. Only those that the job uses count.

Source: SPEC C3.
"""

from collections.abc import Iterator

from ..check import Check, Finding, Need, Stage, failed, passed, warned
from ..context import Context
from ..readers.ports import FATAL, RATED, Port

CABLE = "replace cable or transceiver"
MOST_RISE = 10  # of a counter that may rise slowly, between two looks


def state(context: Context) -> Iterator[Finding]:
    """Look whether ports are up, at the rate that is expected."""
    rates, used = _expected(context)
    for port in context.ports():
        rate = rates.get(port.name, "")
        got = f"{port.state or 'no state'}, {port.physical or 'no physical state'}, {port.rate or 'no rate'}"
        if port.state == "ACTIVE" and port.physical == "LinkUp" and (not rate or port.rate == rate):
            yield passed(port.name, got=got)
        else:
            wanted = f"ACTIVE, LinkUp, {rate or 'any rate'}"
            tell = failed if port.name in used else warned
            yield tell(port.name, got, wanted, "replace the cable; restart its driver")


def errors(context: Context) -> Iterator[Finding]:
    """Look whether counters have risen since one last looked."""
    _, used = _expected(context)
    for port in context.ports():
        looked = context.counters.look(port.name, port.counters)
        fatal = {name: looked[name] for name in FATAL if name in looked and looked[name][1] > looked[name][0]}
        many = {name: looked[name] for name in RATED if name in looked and _rise(looked[name]) > MOST_RISE}
        yield _judge(port, fatal | many, counts=port.name in used)


def _judge(port: Port, rose: dict[str, tuple[int, int]], *, counts: bool) -> Finding:
    if not rose:
        return passed(port.name)
    got = ", ".join(f"{name} rose from {before} to {now}" for name, (before, now) in rose.items())
    wanted = f"{', '.join(FATAL)}: as before; others: at most {MOST_RISE} more"
    if counts:
        return failed(port.name, got, wanted, CABLE)
    return warned(port.name, got, f"{wanted}; the job does not use it", CABLE)


def _rise(looked: tuple[int, int]) -> int:
    return looked[1] - looked[0]


def _expected(context: Context) -> tuple[dict[str, str], set[str]]:
    """Return the expected rate of each port, and which ports the job uses: all, where no file says it."""
    blueprint, ports = context.blueprint(), context.ports()
    if blueprint is None or context.node not in blueprint.nodes:
        return {}, {port.name for port in ports}
    expected = blueprint.nodes[context.node].ports
    used = {name for name, it in expected.items() if not it.gpus or set(it.gpus) & set(context.chosen.gpus)}
    return {name: it.rate for name, it in expected.items()}, used


STATE = Check("nic.state", 0, "network ports of the job are up", 0.5, state, (Need.NIC,))
ERRORS = Check(
    "nic.errors", 0, "network ports of the job had no faults since one last looked", 0.5, errors, (Need.NIC,),
    Stage.LAST,
)  # fmt: skip
