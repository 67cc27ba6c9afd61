"""Backends by name: ours and those that other packages register, found each imported when it is used."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ...cluster.files.errors import BackendError, InputError, PluginError, raise_all
from ...cluster.files.input_problems import input_problems, name_advice
from ...cluster.files.plugins import load, registered
from ...cluster.files.yaml_file import YamlFile, validated
from ..model.gpu_index import Layout
from .protocol import Backend

PLACE = ("backend", "settings")  # in the configuration file


def build(
    name: str, settings: Mapping[str, object], folder: Path, layout: Layout, file: YamlFile | None = None
) -> Backend:
    """Return a backend by its registered name; errors name the line of its settings in their file, if that is given.

    Raises:
        InputError: If there is no such backend, or its settings cannot be used.
        PluginError: If it cannot be imported.
        BackendError: If it cannot use the folder.
    """
    kind = backend_class(name, file)
    try:
        return kind.build(_validated_settings(kind, settings, file), folder, layout)
    except OSError as error:
        raise BackendError(f"backend {name!r} cannot use {error.filename or folder}: {error.strerror}") from error


def backend_class(name: str, file: YamlFile | None = None) -> type[Backend]:
    """Return what is registered as a backend; an error names the line in the file that names it, if that is given.

    Raises:
        InputError: If there is no such backend.
        PluginError: If it cannot be imported or built.
    """
    known = registered("backends")
    if name not in known:
        problem, fix = f"there is no backend {name!r}", name_advice(name, known)
        raise InputError(problem, fix) if file is None else file.error(("backend", "name"), problem, fix)
    kind: object = load("backends", name)
    whole = f"backend {name!r} ({known[name].value})"
    if not isinstance(kind, type) or not issubclass(kind, Backend):
        raise PluginError(f"{whole} is no subclass of Backend")
    missing = sorted(kind.__abstractmethods__) + ["Settings"] * (not hasattr(kind, "Settings"))
    if missing:
        raise PluginError(f"{whole} lacks {', '.join(missing)}")
    return kind


def full_name(name: str, backend: Backend) -> str:
    """Return the name that attempts are stored with: only a backend of the same full name knows them."""
    return f"{name} {backend.capabilities.known_in}".rstrip()


def _validated_settings(kind: type[Backend], settings: Mapping[str, object], file: YamlFile | None) -> BaseModel:
    if file is not None:
        return validated(file, kind.Settings, settings, PLACE)
    try:
        return kind.Settings.model_validate(settings)
    except ValidationError as error:
        found = input_problems(error.errors(include_url=False), kind.Settings.model_json_schema(), settings)
        fix = "write it into a configuration file (docs/configuration.md)"
        raise_all(
            InputError(f"{one.problem}; {one.fix}", fix, field=".".join(map(str, (*PLACE, *one.place))))
            for one in found
        )
        raise AssertionError("an error has a cause") from error
