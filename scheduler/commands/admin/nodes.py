"""`longshore nodes`, `drain`, `resume` and `agent`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....cluster.files.output_file import in_one_line, make_folder
from ..durations import DURATION, duration_between
from ..monitoring.quarantine import place_of
from ..options import DEFAULT_URL, CaOption, JsonOption, UrlOption, client_of, print_json, said

if TYPE_CHECKING:
    from ...client import Client
    from ...health.monitoring.checking import Checking

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
    from ...health.agent import Fencing, open_door, report_for_ever
    from ...health.links.prober import prober_at
    from ...health.monitoring.guarding import lease_file

    client = client_of(url, ca)
    # With leases each second counts: several reports must get lost before one runs out.
    fencing = Fencing(lease_file(node)) if fence else None
    checking = _checking(client, node) if checks else None
    door, prober = None if port < 0 else open_door(node, port), prober_at(probe) if probe else None
    report_for_ever(client, node, min(every, 1.0) if fence else every, fencing, checking, door, prober)


def _checking(client: "Client", node: str) -> "Checking":
    from ...health.gpus import gpu_reports
    from ...health.monitoring.checking import Checking
    from ...preflight.context import Place

    home = Path(".longshore") / "preflight"
    make_folder(home, "--checks")
    return Checking(client, Place(node, home.absolute(), slots=not gpu_reports()))
