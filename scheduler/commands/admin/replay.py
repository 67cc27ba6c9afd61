"""Commands that take decisions out of a store, and meet them again with another policy."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....cluster.files.errors import InputError
from ..durations import DURATION, duration_between
from .getting_ready import compile_first, saying

if TYPE_CHECKING:
    from ...placement.replay import Compared

SHOWN = 20  # differences in the table


def decisions(
    out: Annotated[Path, typer.Option(help="File to write, a line of JSON for each decision.")],
    folder: Annotated[Path, typer.Option(help="That the scheduler was given.")] = Path(".longshore"),
    store: Annotated[str | None, typer.Option(help="URL of the store; SQLite in the folder if left out.")] = None,
    every: Annotated[
        float | None,
        typer.Option(
            parser=duration_between("1s", "30d"), metavar=DURATION,
            help="Replace the file this often, such as 10m, until Ctrl-C; once if left out.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Write all decisions of a scheduler to a file, with all that one needs to learn from them or to replay them."""
    from ....cluster.files.output_file import check_outputs, replacing
    from ...files.paths import exists
    from ...placement.replay import export
    from ...store.opening import open_store

    file = folder / "longshore.db"
    if store is None and not exists(file):
        raise InputError(
            f"{file} is not there", "name the folder of the scheduler by --folder, or its store by --store"
        )
    check_outputs({"--out": out}, {})
    opened = open_store(store or f"sqlite:///{file}")
    try:
        if every is None:
            typer.echo(f"{_write(out, export(opened))} decisions in {out}")
        while every is not None:
            with replacing(out) as part:  # whoever reads it finds all of it
                count = _write(part, export(opened))
            typer.echo(f"{count} decisions in {out}")
            time.sleep(every)
    finally:
        opened.close()


def _write(out: Path, lines: Iterable[str]) -> int:
    """Write lines to a file, and return how many there were."""
    count = 0
    with out.open("w", encoding="utf-8") as written:
        for line in lines:
            written.write(line + "\n")
            count += 1
    return count


def replay(
    file: Annotated[Path, typer.Argument(help="As `longshore decisions` writes it.")],
    policy: Annotated[str, typer.Option(help="Policy that decides in the place of the one that did.")],
    out: Annotated[Path | None, typer.Option(help="File for all comparisons, a line of JSON each.")] = None,
) -> None:
    """Show what another policy would have decided with the same past, decision by decision."""
    from ....agents.registry import find_policy
    from ....cluster.files.output_file import check_outputs
    from ...placement.replay import as_line
    from ...placement.replay import replay as replayed

    check_outputs({"--out": out}, {"FILE": file})
    left_out, other = Counter[str](), find_policy(policy)
    decisions = replayed(file, other, left_out, lambda: compile_first(policy))
    compared = list(islice(decisions, 1))  # a file of another kind is refused before anything is compiled
    with saying(f"deciding by {policy}"):
        compared += decisions
    if out is not None:
        with out.open("w", encoding="utf-8") as written:
            written.writelines(as_line(each) + "\n" for each in compared)
    for line in _table(compared, policy):
        typer.echo(line)
    if left_out:
        reasons = "; ".join(f"{count}, as {why}" for why, count in left_out.items())
        typer.echo(f"decisions that are left out: {reasons}")


def _table(compared: Sequence["Compared"], policy: str) -> list[str]:
    """Return the differences and what they sum up to."""
    differing = [it for it in compared if not it.agrees]
    lines = [f"{'decision':>9}  {'was':44}  {policy}"] if differing else []
    for it in differing[:SHOWN]:
        lines.append(f"{it.seq:9d}  {_move(it.job, it.gpus):44}  {it.error or _move(it.other_job, it.other_gpus)}")
        was, other = it.expected, it.other_expected
        if was is not None or other is not None:
            lines.append(f"{'':9}  {_consequence(it, other=False):44}  {_consequence(it, other=True)}")
    if len(differing) > SHOWN:
        lines.append(f"... and {len(differing) - SHOWN} more; --out FILE has all of them")
    return [*lines, *_summary(compared)]


def _summary(compared: Sequence["Compared"]) -> list[str]:
    count, agreeing = len(compared), sum(it.agrees for it in compared)
    if not count:
        return ["there is no decision that could be met again"]
    lines = [f"{agreeing} of {count} decisions are the same ({100.0 * agreeing / count:.1f} %)"]
    pairs = [
        (it.expected, it.other_expected)
        for it in compared
        if not it.agrees and it.job == it.other_job and it.expected is not None and it.other_expected is not None
    ]
    if pairs:
        gained_s = sum(was.end_s - other.end_s for was, other in pairs) / len(pairs)
        slower = sum(other.slowdown / was.slowdown for was, other in pairs) / len(pairs)
        lines.append(
            f"where both start the same job on other GPUs ({len(pairs)}), it is expected to end "
            f"{abs(gained_s):.0f} s {'earlier' if gained_s >= 0.0 else 'later'}; run times: {slower:.3f} times as long"
        )
    return lines


def _move(job: str, gpus: Sequence[int]) -> str:
    what = "waits" if not gpus else "GPUs " + ",".join(map(str, gpus[:8])) + (",..." if len(gpus) > 8 else "")
    return f"{job[-8:]} {what}"


def _consequence(it: "Compared", *, other: bool) -> str:
    expected = it.other_expected if other else it.expected
    if expected is None:
        return ""
    return f"slowdown {expected.slowdown:.3f}, ends in {expected.end_s - it.at_s:.0f} s"
