"""`longshore prune`."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ..durations import DURATION, duration_between
from .stored import ConfigOption, FolderOption, StoreOption, existing_store, settings_of

if TYPE_CHECKING:
    from ...settings import RetentionChoice

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
    from ...service import retention

    settings = settings_of(config, folder, store)
    choice = settings.retention if older_than is None else _all_after(older_than / DAY_S)
    with existing_store(settings) as opened:
        horizon = retention.horizon_of(choice, time.time())
        found = retention.count(opened, horizon) if dry_run else retention.prune(opened, settings.folder, horizon)
    word = "would be deleted" if dry_run else "deleted"
    typer.echo(f"{found.jobs} jobs, {found.events} events and {found.decisions} decisions {word}")


def _all_after(days: float) -> "RetentionChoice":
    from ...settings import RetentionChoice

    return RetentionChoice(jobs_days=days, events_days=days, decisions_days=days)
