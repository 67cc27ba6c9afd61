"""How the ring of a job stands, for people."""

from collections.abc import Mapping
from typing import Any

import typer

from ..tables import Column, plain, print_table

PHASES = ("detect_s", "stop_s", "choose_s", "form_s", "copy_s", "first_step_s")
RECOVERIES = (
    Column("GENERATION", right=True), Column("MEMBERS", right=True),
    *(Column(phase.removesuffix("_s").upper().replace("_", " "), right=True) for phase in PHASES),
    Column("BECAUSE", gives=True),
)  # fmt: skip
CANDIDATES = (
    Column("CANDIDATE"), Column("T", right=True), Column("T*", right=True), Column(""), Column("LINKS", gives=True),
)  # fmt: skip
MOST_SHOWN = 8  # candidates of the last choice


def print_ring(ring: Mapping[str, Any]) -> None:
    """Print who sits where, and the recoveries so far with the seconds of their phases."""
    filled = sum(member >= 0 for member in ring["order"])
    facts = {
        "ring": f"{ring['phase']}, {filled} of {ring['seats']} seats, generation {ring['generation']}",
        "step": str(ring["step"]),
        "seats": " ".join("empty" if member < 0 else str(member) for member in ring["order"]),
        "spares": " ".join(map(str, ring["spares"])),
    }
    for title, value in facts.items():
        if value:
            typer.echo(f"{title:10s} {plain(value)}")
    for member, reason in ring["gone"].items():
        typer.echo(f"{'gone':10s} {plain(f'member {member}: {reason}')}")
    for it in ring["replacements"]:
        words = f"GPU {it['gpu']} of {it['node']} as rank {it['rank']}, for an empty seat"
        typer.echo(f"{'came':10s} {plain(words)}")
    for it in ring["replacements"][-1:]:
        typer.echo()
        print_table(CANDIDATES, [_candidate(each, it) for each in it["candidates"][:MOST_SHOWN]])
    if len(ring["recoveries"]) > 1:
        typer.echo()
        print_table(RECOVERIES, [_recovery(it) for it in ring["recoveries"][1:]])


def _candidate(it: Mapping[str, Any], of: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = ("-" if it[name] is None else f"{it[name]:.3g}" for name in ("source_s", "ring_s"))
    is_chosen = (it["node"], it["gpu"]) == (of["node"], of["gpu"])
    return f"GPU {it['gpu']} of {it['node']}", *seconds, "chosen" if is_chosen else "", it["links"]


def _recovery(it: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = ("-" if it[phase] < 0 else f"{it[phase]:.3f}" for phase in PHASES)
    return (str(it["generation"]), str(it["members"]), *seconds, it["reason"])
