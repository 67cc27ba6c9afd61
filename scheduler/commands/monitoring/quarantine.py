"""`longshore quarantine`: what stands there, what is put there, and what is cleared."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ....cluster.files.output_file import in_one_line
from ..options import DEFAULT_URL, CaOption, JsonOption, UrlOption, client_of, print_json, said
from ..tables import Column, print_table

LOOK_S = 1.0  # between two looks at checks that run
COLUMNS = (Column("PLACE"), Column("SINCE"), Column("CAUSE", gives=True), Column("CHECK", gives=True),
           Column("ACTION", gives=True), Column("CLEARED BY"), Column("EVIDENCE", gives=True))  # fmt: skip

app = typer.Typer(
    no_args_is_help=True, help="Show and clear broken GPUs, links and nodes, which take no job until they are cleared."
)
PlaceArgument = Annotated[str, typer.Argument(metavar="NODE[:GPU]", help="A node, or a GPU of it by its index.")]


@app.command("list", epilog="Example: longshore quarantine list")
def show(
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


@app.command(epilog="Example: longshore quarantine add gpu-node-1:3 --reason 'coil noise' --action 'replace the GPU'")
def add(
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


@app.command(epilog="Example: longshore quarantine clear gpu-node-1:3")
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
