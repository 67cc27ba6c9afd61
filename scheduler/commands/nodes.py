"""`longshore node`: list, health, drain, resume, agent, quarantine."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cluster.files.durations import duration_text
from ...cluster.files.output_file import in_one_line, make_folder
from .options import (
    DEFAULT_URL,
    DURATION,
    CaOption,
    JsonOption,
    TableColumn,
    UrlOption,
    check_nonempty,
    client_of,
    duration_parser,
    print_json,
    print_table,
    utc_minute_text,
)

if TYPE_CHECKING:
    from ..client import Client
    from ..health.agent import Checking

CHECK_POLL_S = 1.0  # between two polls of running checks
QUARANTINE_COLUMNS = (
    TableColumn("PLACE"), TableColumn("SINCE"), TableColumn("CAUSE", gives=True), TableColumn("CHECK", gives=True),
    TableColumn("ACTION", gives=True), TableColumn("CLEARED BY"), TableColumn("EVIDENCE", gives=True),
)  # fmt: skip

PlaceArgument = Annotated[str, typer.Argument(metavar="NODE[:GPU]", help="A node, or a GPU of it by its index.")]


def quarantines(
    cleared: Annotated[bool, typer.Option("--cleared", help="Also what was cleared in the last 30 days.")] = False,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List what is in quarantine, and why."""
    found = client_of(url, ca).quarantines({"cleared": cleared})
    if json:
        print_json(found)
    elif found:
        print_table(QUARANTINE_COLUMNS, [_quarantine_cells(each) for each in found])
    else:
        typer.echo("nothing is in quarantine")


def quarantine(
    place: PlaceArgument,
    reason: Annotated[
        str, typer.Option(callback=check_nonempty, help="What is wrong with it.")
    ] = "an operator suspects it",
    action: Annotated[str, typer.Option(help="What repairs it.")] = "inspect it",
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Let no job start on a node or a GPU until it is cleared; jobs there run on."""
    acted = client_of(url, ca).put_into_quarantine({**_node_and_gpu(place), "cause": reason, "action": action})
    typer.echo(f"{place} is {'in' if acted == 'quarantined' else 'already in'} quarantine")


def clear(
    place: PlaceArgument,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Clear it without checks.")] = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Check what is in quarantine, and let jobs start there again; exit status 1 if the checks do not pass."""
    client, target = client_of(url, ca), _node_and_gpu(place)
    if not client.clear_quarantine({**target, "unchecked": unchecked})["checking"]:
        typer.echo(f"{place} is out of quarantine")
        return
    typer.echo(f"checking {place}; the checks continue if this command is stopped", err=True)
    while left := [each for each in client.quarantines({}) if _is_about(each, target)]:
        if not any(each["checking"] for each in left):
            typer.echo(f"{place} stays in quarantine: {in_one_line(left[-1]['checked'])}", err=True)
            raise typer.Exit(1)
        time.sleep(CHECK_POLL_S)
    typer.echo(f"{place} is out of quarantine")


def _node_and_gpu(place: str) -> dict[str, Any]:
    """Return the node and the GPU of NODE[:GPU]; a name may hold colons itself."""
    node, colon, gpu = place.rpartition(":")
    return {"node": node, "gpu": int(gpu)} if colon and gpu.isascii() and gpu.isdecimal() else {"node": place}


def _is_about(quarantine: dict[str, Any], target: dict[str, Any]) -> bool:
    ends = ((quarantine["node"], quarantine["gpu"]), (quarantine["other_node"], quarantine["other_gpu"]))
    return any(node == target["node"] and target.get("gpu", gpu) == gpu for node, gpu in ends)


def _quarantine_cells(quarantine: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a quarantine; times are UTC."""
    cleared = quarantine["cleared_by"] or ("checks run" if quarantine["checking"] else quarantine["clears"])
    if quarantine["cleared_s"] is not None:
        cleared += f", {utc_minute_text(quarantine['cleared_s'])}"
    evidence = "; ".join(words for words in (quarantine["evidence"], quarantine["checked"]) if words)
    return (
        place_of(quarantine),
        utc_minute_text(quarantine["since_s"]),
        quarantine["cause"],
        quarantine["check"],
        quarantine["action"],
        cleared,
        evidence,
    )


def place_of(quarantine: dict[str, Any]) -> str:
    """Return a place as NODE:GPU."""
    ends = [(quarantine["node"], quarantine["gpu"])] + (
        [(quarantine["other_node"], quarantine["other_gpu"])] if quarantine["other_node"] else []
    )
    return " to ".join(node if gpu is None else f"{node}:{gpu}" for node, gpu in ends)


NodeArgument = Annotated[str, typer.Argument(help="Name of a node.")]


def nodes(json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """List all nodes, their free GPUs, and what is wrong with them."""
    found = client_of(url, ca).nodes()
    if json:
        print_json(found)
        return
    for node in found:
        grid = " ".join(_gpu_cell(node, gpu) for gpu in range(len(node["gpus"])))
        kind = "slots" if node["slots"] else "GPUs"
        free = 0 if _node_text(node) else grid.split().count(".")
        typer.echo(f"{node['name']:16s} {free} of {len(node['gpus'])} {kind} free  {grid}{_node_text(node)}")
        for each in node["quarantine"]:
            typer.echo(f"{'':16s}   {_quarantine_text(each)}")
        for each in (node["reported"] or {"gpus": []})["gpus"]:
            typer.echo(f"{'':16s}   {_gpu_values_text(each)}")


def _gpu_cell(node: dict[str, Any], gpu: int) -> str:
    job = node["gpus"][gpu]
    if job is None:
        return "x" if gpu in node["faulty"] else "q" if gpu in node["quarantined"] else "."
    return str(job[-4:])


def _quarantine_text(quarantine: dict[str, Any]) -> str:
    """Return why something is in quarantine, and what ends that."""
    found = ": ".join(filter(None, (quarantine["check"], quarantine["evidence"])))
    cause, action, clears = quarantine["cause"], quarantine["action"], quarantine["clears"]
    return in_one_line(f"{place_of(quarantine)} in quarantine: {cause} ({found}); {action}; cleared by {clears}")


def _node_text(node: dict[str, Any]) -> str:
    found = [] if node["state"] == "alive" else [f"{node['state']}: {node['evidence']}"]
    if node["out_of_service"]:
        found.append(f"out of service: {node['out_of_service']}")
    return "".join(f"  {in_one_line(words)}" for words in found)


def _gpu_values_text(gpu: dict[str, Any]) -> str:
    words = [f"GPU {gpu['index']}", f"{gpu['utilisation']:.0%} busy", f"{gpu['free_bytes'] / 2**30:.1f} GiB free"]
    if gpu["temperature_c"] is not None:
        words.append(f"{gpu['temperature_c']:.0f} °C")
    words += [f"{gpu[name]} {name.replace('_', ' ')}" for name in ("ecc_errors", "link_errors") if gpu[name]]
    return ", ".join(words if gpu["healthy"] else [*words, "faulty"])


def drain(
    node: NodeArgument,
    reason: Annotated[str, typer.Option(callback=check_nonempty, help="Why.")] = "drained",
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Take a node out of service: its jobs run to their end, and none starts there."""
    client_of(url, ca).drain(node, reason)
    typer.echo(f"{node} is out of service; its jobs continue")


def resume(node: NodeArgument, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Put a node back into service."""
    client_of(url, ca).resume(node)
    typer.echo(f"{node} is in service")


def agent(
    node: Annotated[str, typer.Option(help="Name of this node in the cluster file.")],
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
    every: Annotated[
        float, typer.Option(parser=duration_parser("100ms", "60s"), metavar=DURATION, help="Time between two reports.")
    ] = 5.0,
    fence: Annotated[
        bool, typer.Option("--fence", help="Kill this node's jobs once the scheduler has not answered for 10 s.")
    ] = False,
    checks: Annotated[
        bool, typer.Option("--checks", help="Run the checks that the scheduler requests to clear a quarantine.")
    ] = False,
    port: Annotated[int, typer.Option(min=-1, max=65535, help="Port for liveness probes; 0: any, -1: none.")] = 0,
    probe: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS[:PORT]",
            help="Measure links to other nodes when the scheduler requests it; ADDRESS is that of this node in the "
            "network of rings. Default port: any free one.",
        ),
    ] = "",
) -> None:
    """Report this node's GPUs to the scheduler, until stopped."""
    from ..health.agent import Fencing, open_agent_port, report_forever
    from ..health.guarding import lease_path
    from ..health.link_probes import open_prober

    client = client_of(url, ca)
    # A lease must outlast several lost reports.
    fencing = Fencing(lease_path(node)) if fence else None
    checking = _agent_checking(client, node) if checks else None
    agent_port, prober = None if port < 0 else open_agent_port(node, port), open_prober(probe) if probe else None
    report_forever(client, node, min(every, 1.0) if fence else every, fencing, checking, agent_port, prober)


def _agent_checking(client: "Client", node: str) -> "Checking":
    from ...preflight.context import NodeSetup
    from ..health.agent import Checking

    home = Path(".longshore") / "preflight"
    make_folder(home, "--checks")
    return Checking(client, NodeSetup(node, home.absolute()))


DAY_S = 86400.0
NODE_FAULT_COLUMNS = (
    TableColumn("NODE", gives=True), TableColumn("TYPE", gives=True), TableColumn("FAULTS", right=True),
    TableColumn("A DAY", right=True), TableColumn("REPAIR", right=True), TableColumn("EXPECTED A DAY", right=True),
    TableColumn(""),
)  # fmt: skip
TYPE_FAULT_COLUMNS = (
    TableColumn("TYPE", gives=True), TableColumn("NODES", right=True), TableColumn("FAULTS", right=True),
    TableColumn("A NODE-DAY", right=True), TableColumn("REPAIR", right=True),
)  # fmt: skip


def health(json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Show how often nodes fail, for how long, and which are lemons; exit status 1 if there are any."""
    found = client_of(url, ca).faults()
    if json:
        print_json(found)
    else:
        typer.echo(f"faults of the last {duration_text(max(time.time() - found['since_s'], 1.0))}")
        typer.echo()
        print_table(TYPE_FAULT_COLUMNS, [_node_type_cells(each) for each in found["types"]])
        typer.echo()
        print_table(NODE_FAULT_COLUMNS, [_node_cells(each) for each in found["nodes"]])
    if any(each["is_lemon"] for each in found["nodes"]):
        raise typer.Exit(1)


def _node_type_cells(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        figures["type"],
        str(figures["nodes"]),
        str(figures["faults"]),
        f"{figures['per_day']:.3g}",
        _repair_text(figures),
    )


def _node_cells(figures: dict[str, Any]) -> tuple[str, ...]:
    hazard = "-" if figures["hazard_per_s"] is None else f"{figures['hazard_per_s'] * DAY_S:.3g}"
    words = "lemon" if figures["is_lemon"] else ""
    return (
        figures["node"],
        figures["type"],
        str(figures["faults"]),
        f"{figures['per_day']:.3g}",
        _repair_text(figures),
        hazard,
        words,
    )


def _repair_text(figures: dict[str, Any]) -> str:
    return "-" if figures["repair_s"] is None else duration_text(figures["repair_s"])
