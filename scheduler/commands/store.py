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
from .options import DEFAULT_URL, DURATION, CaOption, UrlOption, client_of, duration_between
from .serving import compile_first, saying

if TYPE_CHECKING:
    from ..placement.replay import Compared
    from ..settings import RetentionChoice, Settings
    from ..store.opening import Store

ConfigOption = Annotated[Path | None, typer.Option(help="Configuration file of the scheduler.")]
FolderOption = Annotated[Path | None, typer.Option(help="Folder of the scheduler; .longshore if left out.")]
StoreOption = Annotated[str | None, typer.Option(help="URL of the store; SQLite in the folder if left out.")]


def settings_of(config: Path | None, folder: Path | None, store: str | None) -> "Settings":
    """Return the settings of a scheduler; options go before the file.

    Raises:
        InputError: If the file cannot be used, or there is no such folder.
    """
    from ...cluster.files.paths import is_folder
    from ..settings import Chosen, read_settings

    chosen = Chosen() if config is None else read_settings(config)
    given = {name: value for name, value in (("folder", folder), ("store", store)) if value is not None}
    settings = chosen.settings.model_copy(update=given)
    if not is_folder(settings.folder):
        raise InputError(f"{settings.folder} is no folder", "name the folder of the scheduler by --folder")
    return settings


def file_of(settings: "Settings") -> Path | None:
    """Return the file of a store, which may not be there; None if the store is not in SQLite."""
    from ..store.engines import file_of as file_of_url

    return file_of_url(settings.store_url)


@contextmanager
def existing_store(settings: "Settings") -> Iterator["Store"]:
    """Open the store of a scheduler, which has to be there: nothing is made by a mistyped name.

    Raises:
        LongshoreError: If it is not there, or cannot be used.
    """
    from ...cluster.files.paths import exists
    from ..store.opening import open_store

    file = file_of(settings)
    if file is not None and not exists(file):
        raise InputError(f"{file} is not there", "name the scheduler by --config, --folder or --store")
    opened = open_store(settings.store_url)
    try:
        yield opened
    finally:
        opened.close()


def backup(
    file: Annotated[Path, typer.Argument(help="File to write.")],
    config: ConfigOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
) -> None:
    """Write a copy of the store, also while the scheduler runs. It holds secrets: only its owner can read it."""
    from ...cluster.files.paths import exists
    from ..store.copying import back_up

    source = _file(config, folder, store, "pg_dump -Fc -f FILE DATABASE")
    if not exists(source):
        raise InputError(f"{source} is not there", "name the scheduler by --config, --folder or --store")
    size_bytes = back_up(source, file)
    typer.echo(f"{source} is copied to {file}: {size_bytes} bytes")


def restore(
    file: Annotated[Path, typer.Argument(help="As `longshore store backup` writes it.")],
    config: ConfigOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
) -> None:
    """Put a copy in the place of the store of a scheduler that is stopped; the store that is replaced stays beside."""
    from ...cluster.files.paths import exists
    from ..store.copying import put_in_place

    target = _file(config, folder, store, "createdb and pg_restore -d DATABASE FILE")
    if not exists(file):
        raise InputError(f"{file} is not there", "give the path of a copy")
    _refuse_while_used(target)
    aside = put_in_place(file, target, datetime.now(UTC).strftime("replaced-%Y%m%dT%H%M%SZ"))
    typer.echo(f"{file} is in the place of {target}" + ("" if aside is None else f", which is {aside} now"))
    typer.echo("At its start the scheduler looks for attempts that run and are not in it: `longshore store unknown`")


def _file(config: Path | None, folder: Path | None, store: str | None, instead: str) -> Path:
    found = file_of(settings_of(config, folder, store))
    if found is None:
        raise InputError("the store is in PostgreSQL, which has its own commands for this", f"use {instead}")
    return found


def _refuse_while_used(target: Path) -> None:
    """Refuse to replace the store of a scheduler that leads, or that has it open on this machine."""
    from ...cluster.files.processes import is_proven_dead
    from ..store.copying import holder_of, open_in

    holder = holder_of(target)
    if holder is not None and holder.expires_s > time.time() and not is_proven_dead(holder.owner):
        raise InputError(f"a scheduler leads with {target}: {holder.owner}", "stop all schedulers of it first")
    if processes := open_in(target):
        named = ", ".join(map(str, processes[:5]))
        raise InputError(f"{target} is open in process {named}", "stop all schedulers of it first")


DAY_S = 86400.0


def prune(
    older_than: Annotated[
        float | None,
        typer.Option(
            parser=duration_between("1d", "36500d"),
            metavar=DURATION,
            help="Such as 36h, 30d or 8w; as the configuration has it if left out.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how much would be deleted.")] = False,
    config: ConfigOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
) -> None:
    """Delete old history: jobs that ended long ago with their logs, and events and decisions of ended jobs."""
    from ..service import retention

    settings = settings_of(config, folder, store)
    choice = settings.retention if older_than is None else _all_after(older_than / DAY_S)
    with existing_store(settings) as opened:
        horizon = retention.horizon_of(choice, time.time())
        found = retention.count(opened, horizon) if dry_run else retention.prune(opened, settings.folder, horizon)
    word = "would be deleted" if dry_run else "deleted"
    typer.echo(f"{found.jobs} jobs, {found.events} events and {found.decisions} decisions {word}")


def _all_after(days: float) -> "RetentionChoice":
    from ..settings import RetentionChoice

    return RetentionChoice(jobs_days=days, events_days=days, decisions_days=days)


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
    from ...cluster.files.output_file import check_outputs, replacing
    from ...cluster.files.paths import exists
    from ..placement.replay import export
    from ..store.opening import open_store

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
    file: Annotated[Path, typer.Argument(help="As `longshore store decisions` writes it.")],
    policy: Annotated[str, typer.Option(help="Policy that decides in the place of the one that did.")],
    out: Annotated[Path | None, typer.Option(help="File for all comparisons, a line of JSON each.")] = None,
) -> None:
    """Show what another policy would have decided with the same past, decision by decision."""
    from ...agents.registry import find_policy
    from ...cluster.files.output_file import check_outputs
    from ..placement.replay import as_line
    from ..placement.replay import replay as replayed

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


def unknown(
    end: Annotated[str | None, typer.Option(metavar="ATTEMPT", help="Stop this one.")] = None,
    disregard: Annotated[
        str | None, typer.Option(metavar="ATTEMPT", help="Give its GPUs away though it is not proven gone.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List attempts that run but are not in the store, as after a restore; no job starts on their GPUs."""
    client = client_of(url, ca)
    for name, wish in ((end, "end"), (disregard, "disregard")):
        if name is not None:
            client.settle_unknown(name, wish)
            typer.echo(f"{name}: {wish} asked for")
    if end is not None or disregard is not None:
        return
    found = client.unknown()
    for it in found:
        shares = " ".join(f"{share['node']}:{','.join(map(str, share['gpus']))}" for share in it["placement"])
        at = datetime.fromtimestamp(it["found_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"{it['attempt']}  {shares or 'on GPUs that nobody knows'}  found {at}")
    if not found:
        typer.echo("no unknown attempts")
