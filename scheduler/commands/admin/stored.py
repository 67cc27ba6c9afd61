"""What commands take that work on a scheduler's store without asking the scheduler."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....cluster.files.errors import InputError

if TYPE_CHECKING:
    from ...settings import Settings
    from ...store.opening import Store

ConfigOption = Annotated[Path | None, typer.Option(help="Configuration file of the scheduler.")]
FolderOption = Annotated[Path | None, typer.Option(help="Folder of the scheduler; .longshore if left out.")]
StoreOption = Annotated[str | None, typer.Option(help="URL of the store; SQLite in the folder if left out.")]


def settings_of(config: Path | None, folder: Path | None, store: str | None) -> "Settings":
    """Return the settings of a scheduler; options go before the file.

    Raises:
        InputError: If the file cannot be used, or there is no such folder.
    """
    from ...files.paths import is_folder
    from ...settings import Chosen, read_settings

    chosen = Chosen() if config is None else read_settings(config)
    given = {name: value for name, value in (("folder", folder), ("store", store)) if value is not None}
    settings = chosen.settings.model_copy(update=given)
    if not is_folder(settings.folder):
        raise InputError(f"{settings.folder} is no folder", "name the folder of the scheduler by --folder")
    return settings


def file_of(settings: "Settings") -> Path | None:
    """Return the file of a store, which may not be there; None if the store is not in SQLite."""
    from ...store.database.engines import file_of as file_of_url

    return file_of_url(settings.store_url)


@contextmanager
def existing_store(settings: "Settings") -> Iterator["Store"]:
    """Open the store of a scheduler, which has to be there: nothing is made by a mistyped name.

    Raises:
        LongshoreError: If it is not there, or cannot be used.
    """
    from ...files.paths import exists
    from ...store.opening import open_store

    file = file_of(settings)
    if file is not None and not exists(file):
        raise InputError(f"{file} is not there", "name the scheduler by --config, --folder or --store")
    opened = open_store(settings.store_url)
    try:
        yield opened
    finally:
        opened.close()
