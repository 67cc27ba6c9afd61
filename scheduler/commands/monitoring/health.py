"""`longshore health`: what the past tells of the faults of nodes."""

import time
from typing import Any

import typer

from ....cluster.files.durations import duration_text
from ..options import DEFAULT_URL, CaOption, JsonOption, UrlOption, client_of, print_json
from ..tables import Column, print_table

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
