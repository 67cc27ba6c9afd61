"""`longshore backup` and `restore`."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ....cluster.files.errors import InputError
from .stored import ConfigOption, FolderOption, StoreOption, file_of, settings_of


def backup(
    file: Annotated[Path, typer.Argument(help="File to write.")],
    config: ConfigOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
) -> None:
    """Write a copy of the store, also while the scheduler runs. It holds secrets: only its owner can read it."""
    from ...files.paths import exists
    from ...store.copying import back_up

    source = _file(config, folder, store, "pg_dump -Fc -f FILE DATABASE")
    if not exists(source):
        raise InputError(f"{source} is not there", "name the scheduler by --config, --folder or --store")
    size_bytes = back_up(source, file)
    typer.echo(f"{source} is copied to {file}: {size_bytes} bytes")


def restore(
    file: Annotated[Path, typer.Argument(help="As `longshore backup` writes it.")],
    config: ConfigOption = None,
    folder: FolderOption = None,
    store: StoreOption = None,
) -> None:
    """Put a copy in the place of the store of a scheduler that is stopped; the store that is replaced stays beside."""
    from ...files.paths import exists
    from ...store.copying import put_in_place

    target = _file(config, folder, store, "createdb and pg_restore -d DATABASE FILE")
    if not exists(file):
        raise InputError(f"{file} is not there", "give the path of a copy")
    _refuse_while_used(target)
    aside = put_in_place(file, target, datetime.now(UTC).strftime("replaced-%Y%m%dT%H%M%SZ"))
    typer.echo(f"{file} is in the place of {target}" + ("" if aside is None else f", which is {aside} now"))
    typer.echo("At its start the scheduler looks for attempts that run and are not in it: `longshore unknown`")


def _file(config: Path | None, folder: Path | None, store: str | None, instead: str) -> Path:
    found = file_of(settings_of(config, folder, store))
    if found is None:
        raise InputError("the store is in PostgreSQL, which has its own commands for this", f"use {instead}")
    return found


def _refuse_while_used(target: Path) -> None:
    """Refuse to replace the store of a scheduler that leads, or that has it open on this machine."""
    from ...files.owner import is_proven_dead
    from ...store.copying import holder_of, open_in

    holder = holder_of(target)
    if holder is not None and holder.expires_s > time.time() and not is_proven_dead(holder.owner):
        raise InputError(f"a scheduler leads with {target}: {holder.owner}", "stop all schedulers of it first")
    if processes := open_in(target):
        named = ", ".join(map(str, processes[:5]))
        raise InputError(f"{target} is open in process {named}", "stop all schedulers of it first")
