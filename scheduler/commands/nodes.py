"""`longshore node`: list, health, drain, resume, agent, quarantine."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cluster.files.durations import duration_text
from ...cluster.files.output_file import in_one_line, make_folder
from .options import (
    DEFAULT_URL,
    DURATION,
    CaOption,
    Column,
    JsonOption,
    UrlOption,
    client_of,
    duration_between,
    print_json,
    print_table,
    said,
)

if TYPE_CHECKING:
    from ..client import Client
    from ..health.agent import Checking

LOOK_S = 1.0  # between two looks at checks that run
COLUMNS = (Column("PLACE"), Column("SINCE"), Column("CAUSE", gives=True), Column("CHECK", gives=True),
           Column("ACTION", gives=True), Column("CLEARED BY"), Column("EVIDENCE", gives=True))  # fmt: skip

PlaceArgument = Annotated[str, typer.Argument(metavar="NODE[:GPU]", help="A node, or a GPU of it by its index.")]


def quarantines(
    cleared: Annotated[bool, typer.Option("--cleared", help="Also what was cleared within the last 30 days.")] = False,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List what stands in quarantine, and why."""
    found = client_of(url, ca).quarantines({"cleared": cleared})
    if json:
        print_json(found)
    elif found:
        print_table(COLUMNS, [_row(it) for it in found])
    else:
        typer.echo("nothing is in quarantine")


def quarantine(
    place: PlaceArgument,
    reason: Annotated[
        str, typer.Option(callback=said, help="What is wrong with it, for people.")
    ] = "an operator doubts it",
    action: Annotated[str, typer.Option(help="What mends it, for people.")] = "look at it",
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Let no job start on a node or a GPU until it is cleared; jobs there run on."""
    acted = client_of(url, ca).put_into_quarantine({**_asked(place), "cause": reason, "action": action})
    typer.echo(f"{place} is in quarantine" if acted == "quarantined" else f"{place} was in quarantine for that already")


def clear(
    place: PlaceArgument,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Run no checks before.")] = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Check what stands in quarantine and let jobs start there again; exit status 1 if the checks do not pass."""
    client, asked = client_of(url, ca), _asked(place)
    if not client.clear_quarantine({**asked, "unchecked": unchecked})["checking"]:
        typer.echo(f"{place} is out of quarantine")
        return
    typer.echo(f"checking {place}; that goes on if this command is stopped", err=True)
    while left := [it for it in client.quarantines({}) if _is_about(it, asked)]:
        if not any(it["checking"] for it in left):
            typer.echo(f"{place} stays in quarantine: {in_one_line(left[-1]['checked'])}", err=True)
            raise typer.Exit(1)
        time.sleep(LOOK_S)
    typer.echo(f"{place} is out of quarantine")


def _asked(place: str) -> dict[str, Any]:
    """Return node and GPU of a place; a name may hold colons itself."""
    node, colon, gpu = place.rpartition(":")
    return {"node": node, "gpu": int(gpu)} if colon and gpu.isascii() and gpu.isdecimal() else {"node": place}


def _is_about(quarantine: dict[str, Any], asked: dict[str, Any]) -> bool:
    ends = ((quarantine["node"], quarantine["gpu"]), (quarantine["other_node"], quarantine["other_gpu"]))
    return any(node == asked["node"] and asked.get("gpu", gpu) == gpu for node, gpu in ends)


def _row(it: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a quarantine; times are UTC."""
    cleared = it["cleared_by"] or ("checks run" if it["checking"] else it["clears"])
    if it["cleared_s"] is not None:
        cleared += f", {_moment(it['cleared_s'])}"
    evidence = "; ".join(words for words in (it["evidence"], it["checked"]) if words)
    return place_of(it), _moment(it["since_s"]), it["cause"], it["check"], it["action"], cleared, evidence


def place_of(it: dict[str, Any]) -> str:
    """Return a place as people write it."""
    ends = [(it["node"], it["gpu"])] + ([(it["other_node"], it["other_gpu"])] if it["other_node"] else [])
    return " to ".join(node if gpu is None else f"{node}:{gpu}" for node, gpu in ends)


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")


NodeArgument = Annotated[str, typer.Argument(help="Name of a node.")]


def nodes(json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Show all nodes, which of their GPUs are free, and what is wrong with them."""
    found = client_of(url, ca).nodes()
    if json:
        print_json(found)
        return
    for node in found:
        grid = " ".join(_cell(node, gpu) for gpu in range(len(node["gpus"])))
        kind = "slots" if node["slots"] else "GPUs"
        free = 0 if _words(node) else grid.split().count(".")
        typer.echo(f"{node['name']:16s} {free} of {len(node['gpus'])} {kind} free  {grid}{_words(node)}")
        for it in node["quarantine"]:
            typer.echo(f"{'':16s}   {_words_on(it)}")
        for it in (node["reported"] or {"gpus": []})["gpus"]:
            typer.echo(f"{'':16s}   {_values(it)}")


def _cell(node: dict[str, Any], gpu: int) -> str:
    job = node["gpus"][gpu]
    if job is None:
        return "x" if gpu in node["faulty"] else "q" if gpu in node["quarantined"] else "."
    return str(job[-4:])


def _words_on(it: dict[str, Any]) -> str:
    """Return why something is in quarantine, and what ends that."""
    evidence = f" ({it['check']}: {it['evidence']})" if it["evidence"] else f" ({it['check']})"
    return in_one_line(
        f"{place_of(it)} in quarantine: {it['cause']}{evidence}; {it['action']}; cleared by {it['clears']}"
    )


def _words(node: dict[str, Any]) -> str:
    found = [] if node["state"] == "alive" else [f"{node['state']}: {node['evidence']}"]
    if node["out_of_service"]:
        found.append(f"out of service: {node['out_of_service']}")
    return "".join(f"  {in_one_line(words)}" for words in found)


def _values(gpu: dict[str, Any]) -> str:
    words = [f"GPU {gpu['index']}", f"{gpu['utilisation']:.0%} busy", f"{gpu['free_bytes'] / 2**30:.1f} GiB free"]
    if gpu["temperature_c"] is not None:
        words.append(f"{gpu['temperature_c']:.0f} °C")
    words += [f"{gpu[name]} {name.replace('_', ' ')}" for name in ("ecc_errors", "link_errors") if gpu[name]]
    return ", ".join(words if gpu["healthy"] else [*words, "faulty"])


def drain(
    node: NodeArgument,
    reason: Annotated[str, typer.Option(callback=said, help="Why, for people.")] = "drained",
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Take a node out of service: jobs on it run to their ends, and none starts there."""
    client_of(url, ca).drain(node, reason)
    typer.echo(f"{node} is out of service; jobs on it run on")


def resume(node: NodeArgument, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Put a node into service again."""
    client_of(url, ca).resume(node)
    typer.echo(f"{node} is in service")


def agent(
    node: Annotated[str, typer.Option(help="Name of this node in the cluster file.")],
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
    every: Annotated[
        float, typer.Option(parser=duration_between("100ms", "60s"), metavar=DURATION, help="Between two reports.")
    ] = 5.0,
    fence: Annotated[
        bool, typer.Option("--fence", help="Kill the jobs of this node when the scheduler has not answered for 10 s.")
    ] = False,
    checks: Annotated[
        bool, typer.Option("--checks", help="Run the checks that the scheduler asks for, to clear a quarantine.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=-1, max=65535, help="Where it answers who asks whether it lives; 0: any, -1: nowhere.")
    ] = 0,
    probe: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS[:PORT]",
            help="Measure links to other nodes when the scheduler asks; the address is this node's on the network over "
            "which rings exchange. Any free port if left out.",
        ),
    ] = "",
) -> None:
    """Report this node's GPUs to the scheduler, until it is stopped."""
    from ..health.agent import Fencing, open_door, report_for_ever
    from ..health.guarding import lease_file
    from ..health.link_probes import prober_at

    client = client_of(url, ca)
    # With leases each second counts: several reports must get lost before one runs out.
    fencing = Fencing(lease_file(node)) if fence else None
    checking = _checking(client, node) if checks else None
    door, prober = None if port < 0 else open_door(node, port), prober_at(probe) if probe else None
    report_for_ever(client, node, min(every, 1.0) if fence else every, fencing, checking, door, prober)


def _checking(client: "Client", node: str) -> "Checking":
    from ...preflight.context import NodeSetup
    from ..health.agent import Checking, gpu_reports

    home = Path(".longshore") / "preflight"
    make_folder(home, "--checks")
    return Checking(client, NodeSetup(node, home.absolute(), slots=not gpu_reports()))


DAY_S = 86400.0
NODES = (Column("NODE", gives=True), Column("TYPE", gives=True), Column("FAULTS", right=True),
         Column("A DAY", right=True), Column("REPAIR", right=True), Column("EXPECTED A DAY", right=True),
         Column(""))  # fmt: skip
TYPES = (Column("TYPE", gives=True), Column("NODES", right=True), Column("FAULTS", right=True),
         Column("A NODE-DAY", right=True), Column("REPAIR", right=True))  # fmt: skip


def health(json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Show how often nodes fail, how long that lasts, and which are lemons; exit status 1 if there are any."""
    found = client_of(url, ca).faults()
    if json:
        print_json(found)
    else:
        typer.echo(f"faults of the last {duration_text(max(time.time() - found['since_s'], 1.0))}")
        typer.echo()
        print_table(TYPES, [_type(it) for it in found["types"]])
        typer.echo()
        print_table(NODES, [_node(it) for it in found["nodes"]])
    if any(it["is_lemon"] for it in found["nodes"]):
        raise typer.Exit(1)


def _type(it: dict[str, Any]) -> tuple[str, ...]:
    return it["type"], str(it["nodes"]), str(it["faults"]), f"{it['per_day']:.3g}", _repair(it)


def _node(it: dict[str, Any]) -> tuple[str, ...]:
    hazard = "-" if it["hazard_per_s"] is None else f"{it['hazard_per_s'] * DAY_S:.3g}"
    words = "lemon" if it["is_lemon"] else ""
    return it["node"], it["type"], str(it["faults"]), f"{it['per_day']:.3g}", _repair(it), hazard, words


def _repair(it: dict[str, Any]) -> str:
    return "-" if it["repair_s"] is None else duration_text(it["repair_s"])
