"""Backends by name: ours and those that other packages register, found without importing any until it is used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from ...cluster.files.errors import BackendError, InputError, PluginError, raise_all
from ...cluster.files.input_problems import input_problems, nearest
from ...cluster.files.plugins import load, registered
from ...cluster.files.yaml_file import YamlFile, validated
from ..model.gpu_index import Layout
from .protocol import Backend

PLACE = ("backend", "settings")  # in the configuration file


class Buildable(Protocol):
    """What is registered: the class of a backend, which knows its own settings."""

    Settings: type[BaseModel]

    @classmethod
    def build(cls, settings: Any, folder: Path, layout: Layout) -> Backend:
        """Return the backend.

        Args:
            settings: Of the class `Settings`.
            folder: Of the scheduler; a backend that writes files makes a folder of its own in it.
            layout: Nodes and their GPUs, in cluster-file order.

        Raises:
            LongshoreError: If it cannot be used here.
        """
        ...


def build(
    name: str, settings: Mapping[str, object], folder: Path, layout: Layout, file: YamlFile | None = None
) -> Backend:
    """Return a backend by its registered name.

    Args:
        name: Of the backend.
        settings: Its own.
        folder: Of the scheduler.
        layout: Nodes and their GPUs.
        file: That the settings come from, so that errors can name the line.

    Raises:
        InputError: If there is no such backend, or its settings cannot be used.
        PluginError: If it cannot be imported.
        BackendError: If it cannot use the folder.
    """
    kind = kind_of(name, file)
    try:
        return kind.build(_own(kind, settings, file), folder, layout)
    except OSError as error:
        raise BackendError(f"backend {name!r} cannot use {error.filename or folder}: {error.strerror}") from error


def kind_of(name: str, file: YamlFile | None = None) -> Buildable:
    """Return what is registered as a backend.

    Args:
        name: Of the backend.
        file: That the name comes from, so that errors can name the line.

    Raises:
        InputError: If there is no such backend.
        PluginError: If it cannot be imported or built.
    """
    known = registered("backends")
    if name not in known:
        problem = f"there is no backend {name!r}"
        raise (
            InputError(problem, nearest(name, known))
            if file is None
            else file.error(("backend", "name"), problem, nearest(name, known))
        )
    kind: Buildable = load("backends", name)
    if not hasattr(kind, "Settings") or not hasattr(kind, "build"):
        raise PluginError(f"backend {name!r} ({known[name].value}) cannot be built: it lacks Settings or build")
    return kind


def full_name(name: str, backend: Backend) -> str:
    """Return what attempts are marked with: only a backend of the same full name knows what became of them."""
    return f"{name} {backend.capabilities.known_in}".rstrip()


def _own(kind: Buildable, settings: Mapping[str, object], file: YamlFile | None) -> BaseModel:
    if file is not None:
        return validated(file, kind.Settings, settings, PLACE)
    try:
        return kind.Settings.model_validate(settings)
    except ValidationError as error:
        found = input_problems(error.errors(include_url=False), kind.Settings.model_json_schema(), settings)
        fix = "write it into a configuration file (docs/configuration.md)"
        raise_all(
            InputError(f"{it.problem}; {it.fix}", fix, field=".".join(map(str, (*PLACE, *it.place)))) for it in found
        )
        raise AssertionError("an error has a cause") from error
