"""How the ring of a job stands, for people."""

from collections.abc import Collection, Mapping
from typing import Any

import typer

from ....cluster.files.output_file import in_one_line
from ..tables import Column, print_table

PHASES = ("detect_s", "stop_s", "choose_s", "form_s", "copy_s", "first_step_s")
RECOVERIES = (
    Column("GENERATION", right=True), Column("MEMBERS", right=True),
    *(Column(phase.removesuffix("_s").upper().replace("_", " "), right=True) for phase in PHASES),
    Column("BECAUSE", gives=True),
)  # fmt: skip
MEMBERS = (
    Column("SEAT"), Column("MEMBER", right=True), Column("GPU", gives=True), Column("RANK", right=True),
    Column("PID", right=True),
)  # fmt: skip
CANDIDATES = (
    Column("CANDIDATE"), Column("T", right=True), Column("T*", right=True), Column(""), Column("LINKS", gives=True),
)  # fmt: skip
MOST_SHOWN = 8  # candidates of the last choice


def print_ring(ring: Mapping[str, Any]) -> None:
    """Print who sits where, and the recoveries so far with the seconds of their phases."""
    filled = sum(member >= 0 for member in ring["order"])
    spares = len(ring["spares"])
    typer.echo(
        f"{'ring':10s} {in_one_line(ring['phase'])}, {filled} of {ring['seats']} seats, "
        f"{spares} spare{'s' * (spares != 1)}, generation {ring['generation']}, step {ring['step']}"
    )
    for words in ring["hints"]:
        typer.echo(f"{'hint':10s} {in_one_line(words)}")
    if ring["relieved"]:
        typer.echo(f"{'slow':10s} {', '.join(map(str, ring['relieved']))}")
    for reason in dict.fromkeys(ring["gone"].values()):
        of = [member for member, its in ring["gone"].items() if its == reason]
        words = f"member{'s' * (len(of) > 1)} {', '.join(of)}: {reason}"
        typer.echo(f"{'gone':10s} {in_one_line(words)}")
    for it in ring["replacements"]:
        use = "for an empty seat" if it["backup_for"] is None else f"as the backup of member {it['backup_for']}"
        words = f"GPU {it['gpu']} of {it['node']} as rank {it['rank']}, {use}"
        typer.echo(f"{'came':10s} {in_one_line(words)}")
    typer.echo()
    print_table(MEMBERS, [_member(it, ring["spares"]) for it in _by_seat(ring)])
    for it in ring["replacements"][-1:]:
        average = f"{it['average_s']:.3g} s" if it["average_s"] > 0.0 else "not known"
        typer.echo(f"\n{'before':10s} an iteration of the ring took {average}; with each candidate, in seconds:")
        print_table(CANDIDATES, [_candidate(each, it) for each in it["candidates"][:MOST_SHOWN]])
    if len(ring["recoveries"]) > 1:
        typer.echo()
        print_table(RECOVERIES, [_recovery(it) for it in ring["recoveries"][1:]])


def _by_seat(ring: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the members by seat, then the others; seats that nobody has among them."""
    empty = [{"seat": seat, "member": None} for seat, member in enumerate(ring["order"]) if member < 0]
    return sorted([*ring["members"], *empty], key=lambda it: (it["seat"] is None, it["seat"] or 0, it["member"] or 0))


def _member(it: Mapping[str, Any], spares: Collection[int]) -> tuple[str, ...]:
    if it["member"] is None:
        return str(it["seat"]), "empty", "-", "-", "-"
    seat = it["seat"] if it["seat"] is not None else "spare" if it["member"] in spares else "-"
    pid = "-" if it["pid"] is None else str(it["pid"])
    return str(seat), str(it["member"]), f"{it['node']}:{it['gpu']}", str(it["rank"]), pid


def _candidate(it: Mapping[str, Any], of: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = ("-" if it[name] is None else f"{it[name]:.3g}" for name in ("source_s", "ring_s"))
    is_chosen = (it["node"], it["gpu"]) == (of["node"], of["gpu"])
    return f"GPU {it['gpu']} of {it['node']}", *seconds, "chosen" if is_chosen else "", it["links"]


def _recovery(it: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = ("-" if it[phase] < 0 else f"{it[phase]:.3f}" for phase in PHASES)
    return (str(it["generation"]), str(it["members"]), *seconds, it["reason"])
