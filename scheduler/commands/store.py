"""`longshore store`: backup, restore, unknown, prune, decisions; `longshore policy replay`."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...cluster.files.errors import InputError
from .options import DEFAULT_URL, DURATION, CaOption, UrlOption, client_of, duration_parser, placement_text
from .serving import compile_for_policies, progress_lines

if TYPE_CHECKING:
    from ..placement.replay import Compared
    from ..settings import SchedulerSettings
    from ..store.database import Store

ConfigOption = Annotated[Path | None, typer.Option(help="Configuration file of the scheduler.")]
FolderOption = Annotated[Path | None, typer.Option(help="Folder of the scheduler; default: .longshore.")]
StoreOption = Annotated[str | None, typer.Option(help="URL of the store; default: SQLite in the folder.")]


def settings_of(config: Path | None, folder: Path | None, store: str | None) -> "SchedulerSettings":
    """Return the settings of a scheduler; options override the file.

    Raises:
        InputError: If the file cannot be used, or there is no such folder.
    """
    from ...cluster.files.paths import is_folder
    from ..settings import ServeOptions, read_settings

    chosen = ServeOptions() if config is None else read_settings(config)
    given = {name: value for name, value in (("folder", folder), ("store", store)) if value is not None}
    settings = chosen.settings.model_copy(update=given)
    if not is_folder(settings.folder):
        raise InputError(f"{settings.folder} is no folder", "name the folder of the scheduler by --folder")
    return settings


@contextmanager
def open_existing_store(url: str) -> Iterator["Store"]:
    """Open an existing store: a mistyped folder or file creates none.

    Raises:
        LongshoreError: If it does not exist, or cannot be used.
    """
    from ..store.database import file_of, open_store

    if (file := file_of(url)) is not None:
        _check_is_file(file)
    opened = open_store(url)
    try:
        yield opened
    finally:
        opened.close()


def _check_is_file(file: Path) -> None:
    from ...cluster.files.paths import is_file

    if not is_file(file):
        fix = "name the scheduler by --folder, or its store by --store; `longshore serve` creates it at its first start"
        raise InputError(f"there is no store at {file}", fix)


def backup(
    file: Annotated[Path, typer.Argument(help="File to write.")],
    config: ConfigOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
) -> None:
    """Copy the store to a file, also while the scheduler runs. The file holds secrets: only its owner can read it."""
    from ..store.copying import back_up

    source = _store_file(config, folder, store, "pg_dump -Fc -f FILE DATABASE")
    _check_is_file(source)
    size_bytes = back_up(source, file)
    typer.echo(f"{source} is copied to {file}: {size_bytes} bytes")


def restore(
    file: Annotated[Path, typer.Argument(help="As `longshore store backup` writes it.")],
    config: ConfigOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
) -> None:
    """Replace the store of a stopped scheduler by a backup; the replaced store stays beside it."""
    from ...cluster.files.paths import exists
    from ..store.copying import swap_in_backup

    target = _store_file(config, folder, store, "createdb and pg_restore -d DATABASE FILE")
    if not exists(file):
        raise InputError(f"{file} is not there", "give the path of a copy")
    _refuse_while_used(target)
    aside = swap_in_backup(file, target, datetime.now(UTC).strftime("replaced-%Y%m%dT%H%M%SZ"))
    typer.echo(f"{file} is in the place of {target}" + ("" if aside is None else f", which is {aside} now"))
    typer.echo("At its start the scheduler finds running attempts that are not in it: `longshore store unknown`")


def _store_file(config: Path | None, folder: Path | None, store: str | None, instead: str) -> Path:
    from ..store.database import file_of

    found = file_of(settings_of(config, folder, store).store_url)
    if found is None:
        raise InputError("the store is in PostgreSQL, which has its own commands for this", f"use {instead}")
    return found


def _refuse_while_used(target: Path) -> None:
    """Refuse if a scheduler leads with a store, or a process of this machine has it open."""
    from ...cluster.files.processes import is_proven_dead
    from ..store.copying import lease_in_file, processes_with_open

    lease = lease_in_file(target)
    if lease is not None and lease.expires_s > time.time() and not is_proven_dead(lease.owner):
        raise InputError(f"a scheduler leads with {target}: {lease.owner}", "stop all schedulers of it first")
    if processes := processes_with_open(target):
        named = ", ".join(map(str, processes[:5]))
        raise InputError(f"{target} is open in process {named}", "stop all schedulers of it first")


DAY_S = 86400.0


def prune(
    older_than: Annotated[
        float | None,
        typer.Option(
            parser=duration_parser("1d", "36500d"),
            metavar=DURATION,
            help="Such as 36h, 30d or 8w; default: that of the configuration.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print how much would be deleted.")] = False,
    config: ConfigOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
) -> None:
    """Delete old history: jobs that ended long ago with their logs, and events and decisions of ended jobs."""
    from ..service import retention

    settings = settings_of(config, folder, store)
    choice = settings.retention
    if older_than is not None:
        days = older_than / DAY_S
        choice = choice.model_copy(update={"jobs_days": days, "events_days": days, "decisions_days": days})
    with open_existing_store(settings.store_url) as opened:
        horizon = retention.horizon_of(choice, time.time())
        found = (
            retention.count_prunable(opened, horizon) if dry_run else retention.prune(opened, settings.folder, horizon)
        )
    word = "would be deleted" if dry_run else "deleted"
    typer.echo(f"{found.jobs} jobs, {found.events} events and {found.decisions} decisions {word}")


MAX_SHOWN_DIFFERENCES = 20  # differences in the table


def decisions(
    out: Annotated[Path, typer.Option(help="File to write, with a line of JSON for each decision.")],
    folder: Annotated[Path, typer.Option(help="Folder of the scheduler.")] = Path(".longshore"),
    store: Annotated[str | None, typer.Option(help="URL of the store; default: SQLite in the folder.")] = None,
    every: Annotated[
        float | None,
        typer.Option(
            parser=duration_parser("1s", "30d"), metavar=DURATION,
            help="Replace the file at this interval, such as 10m, until Ctrl-C; default: once.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Write all decisions of a scheduler to a file, with what learning from them or replaying them needs."""
    from ...cluster.files.output_file import check_outputs, replacing_file
    from ..placement.replay import export_decisions
    from ..settings import default_store_url

    check_outputs({"--out": out}, {})
    with open_existing_store(store or default_store_url(folder)) as opened:
        if every is None:
            typer.echo(f"{_write_lines(out, export_decisions(opened))} decisions in {out}")
        while every is not None:
            with replacing_file(out) as part:  # a reader finds either file whole
                count = _write_lines(part, export_decisions(opened))
            typer.echo(f"{count} decisions in {out}")
            time.sleep(every)


def _write_lines(out: Path, lines: Iterable[str]) -> int:
    """Write lines to a file, and return their number."""
    count = 0
    with out.open("w", encoding="utf-8") as written:
        for line in lines:
            written.write(line + "\n")
            count += 1
    return count


def replay(
    file: Annotated[Path, typer.Argument(help="As `longshore store decisions` writes it.")],
    policy: Annotated[str, typer.Option(help="Policy that decides instead.")],
    out: Annotated[Path | None, typer.Option(help="File for all comparisons, with a line of JSON each.")] = None,
) -> None:
    """Show what another policy would have decided in the same situations, decision by decision."""
    from ...agents.registry import find_policy
    from ...cluster.files.output_file import check_outputs
    from ..placement.replay import comparison_line
    from ..placement.replay import replay as replayed

    check_outputs({"--out": out}, {"FILE": file})
    omitted, other = Counter[str](), find_policy(policy)
    decisions = replayed(file, other, omitted, lambda: compile_for_policies(policy))
    compared = list(islice(decisions, 1))  # a file of another kind is refused before anything is compiled
    with progress_lines(f"deciding by {policy}"):
        compared += decisions
    if out is not None:
        with out.open("w", encoding="utf-8") as written:
            written.writelines(comparison_line(each) + "\n" for each in compared)
    for line in _comparison_table(compared, policy):
        typer.echo(line)
    if omitted:
        reasons = "; ".join(f"{count}, as {why}" for why, count in omitted.items())
        typer.echo(f"omitted decisions: {reasons}")


def _comparison_table(compared: Sequence["Compared"], policy: str) -> list[str]:
    """Return the differences and their summary."""
    differing = [each for each in compared if not each.agrees]
    lines = [f"{'decision':>9}  {'was':44}  {policy}"] if differing else []
    for each in differing[:MAX_SHOWN_DIFFERENCES]:
        instead = each.error or _placement_cell(each.other_job, each.other_gpus)
        lines.append(f"{each.seq:9d}  {_placement_cell(each.job, each.gpus):44}  {instead}")
        was, other = each.expected, each.other_expected
        if was is not None or other is not None:
            lines.append(f"{'':9}  {_consequence_cell(each, other=False):44}  {_consequence_cell(each, other=True)}")
    if len(differing) > MAX_SHOWN_DIFFERENCES:
        lines.append(f"... and {len(differing) - MAX_SHOWN_DIFFERENCES} more; --out FILE has all of them")
    return [*lines, *_comparison_summary(compared)]


def _comparison_summary(compared: Sequence["Compared"]) -> list[str]:
    count, agreeing = len(compared), sum(each.agrees for each in compared)
    if not count:
        return ["there is no decision to replay"]
    lines = [f"{agreeing} of {count} decisions are the same ({100.0 * agreeing / count:.1f} %)"]
    moved = (each for each in compared if not each.agrees and each.job == each.other_job)
    pairs = [
        (each.expected, each.other_expected)
        for each in moved
        if each.expected is not None and each.other_expected is not None
    ]
    if pairs:
        gained_s = sum(was.end_s - other.end_s for was, other in pairs) / len(pairs)
        slower = sum(other.slowdown / was.slowdown for was, other in pairs) / len(pairs)
        lines.append(
            f"where both start the same job on other GPUs ({len(pairs)}), it is expected to end "
            f"{abs(gained_s):.0f} s {'earlier' if gained_s >= 0.0 else 'later'}; run times: {slower:.3f} times as long"
        )
    return lines


def _placement_cell(job: str, gpus: Sequence[int]) -> str:
    what = "waits" if not gpus else "GPUs " + ",".join(map(str, gpus[:8])) + (",..." if len(gpus) > 8 else "")
    return f"{job[-8:]} {what}"


def _consequence_cell(compared: "Compared", *, other: bool) -> str:
    expected = compared.other_expected if other else compared.expected
    if expected is None:
        return ""
    return f"slowdown {expected.slowdown:.3f}, ends in {expected.end_s - compared.at_s:.0f} s"


def unknown(
    end: Annotated[str | None, typer.Option(metavar="ATTEMPT", help="Stop this one.")] = None,
    disregard: Annotated[
        str | None, typer.Option(metavar="ATTEMPT", help="Let jobs start on its GPUs although it is not proven gone.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List running attempts that are not in the store, as after a restore; no job starts on their GPUs."""
    client = client_of(url, ca)
    for name, action in ((end, "end"), (disregard, "disregard")):
        if name is not None:
            client.resolve_unknown(name, action)
            typer.echo(f"{name}: {action} requested")
    if end is not None or disregard is not None:
        return
    found = client.unknown()
    for attempt in found:
        gpus = placement_text(attempt["placement"])
        at = datetime.fromtimestamp(attempt["found_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"{attempt['attempt']}  {gpus or 'on unknown GPUs'}  found {at}")
    if not found:
        typer.echo("no unknown attempts")
