"""YAML files read safely, with errors that name the line and the key."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from .errors import InputError

MAX_BYTES = 16_000_000  # far beyond any file written by hand; keeps a wrong path from filling the memory

Place = tuple[str | int, ...]  # keys and list indices from the root
Model = TypeVar("Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """Reads 125e12 as a number, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@dataclass(frozen=True, slots=True)
class YamlFile:
    """What a YAML file holds, and where."""

    path: Path
    data: object
    root: yaml.MappingNode

    def error(self, place: Place, problem: str, fix: str = "") -> InputError:
        """Return an error at a place, or at the nearest one above it that the file has."""
        line, _ = _find(self.root, place)
        field = ".".join(str(part) for part in place)
        return InputError(problem, fix, path=self.path, line=line, field=field)

    def seen(self, place: Place, value: object) -> str:
        """Return what the file says at a place, shortened; the value's own form where it is not one word."""
        _, node = _find(self.root, place)
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else str(value)
        return repr(text if len(text) <= 60 else text[:57] + "...")


def read_yaml(path: Path) -> YamlFile:
    """Return what a YAML file of keys and values holds.

    Raises:
        InputError: If the file cannot be read, is empty, is not YAML, repeats a key, or uses anchors.
    """
    text = _text(path)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise InputError("the file is empty", "see docs/clusters.md for what it holds", path=path)
        if not isinstance(root, yaml.MappingNode):
            raise InputError("the file does not hold keys and values", "write `key: value` lines", path=path, line=1)
        _check(root, path, set())
        return YamlFile(path, loader.construct_document(root), root)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        fix = "correct this line or the one before"
        raise InputError(f"not YAML: {error.problem}", fix, path=path, line=line) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: numbers of thousands of digits, dates that are none
        raise InputError(f"not YAML: {str(error).splitlines()[0]}", "correct the file", path=path) from error
    except RecursionError as error:
        raise InputError("nested too deeply", "write the file without brackets in brackets", path=path) from error


def validated(file: YamlFile, model: type[Model], data: object, place: Place = ()) -> Model:
    """Return a part of a file as a model.

    Args:
        file: Names the lines in errors.
        model: What the part should be.
        data: The part.
        place: Where it stands in the file.

    Raises:
        InputError: Naming the first value that does not fit.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _first_problem(file, model, place, error) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the advice for a name that is not known: the nearest known one if there is one, else all."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names[:20])}"


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"the file has more than {MAX_BYTES} bytes", "is it the right file?", path=path)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8", "save the file as UTF-8", path=path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "check the path", path=path) from error


def _check(node: yaml.Node, path: Path, met: set[int]) -> None:
    """Refuse what would be read as something else than it looks like: repeated keys, and copies by anchor."""
    line = node.start_mark.line + 1
    if id(node) in met:
        raise InputError("anchors and aliases are not supported", "write the value out", path=path, line=line)
    met.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, path, met)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if str(key.value) in keys:
                at = key.start_mark.line + 1
                raise InputError(f"the key {key.value!r} stands twice", "drop one of them", path=path, line=at)
            keys.add(str(key.value))
            _check(value, path, met)


def _find(root: yaml.Node, place: Place) -> tuple[int, yaml.Node | None]:
    """Return the one-based line of the deepest part of a place that exists, and the node if all of it does."""
    node, line = root, root.start_mark.line + 1
    for part in place:
        below: tuple[int, yaml.Node] | None = None
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(part)]
            below = (found[0][0].start_mark.line, found[0][1]) if found else None
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            below = (node.value[part].start_mark.line, node.value[part])
        if below is None:
            return line, None
        line, node = below[0] + 1, below[1]
    return line, node


def _first_problem(file: YamlFile, model: type[BaseModel], place: Place, error: ValidationError) -> InputError:
    problems = error.errors(include_url=False)
    # A misspelt key is also a missing one: the spelling is what helps.
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    inside: Place = tuple(part for part in first["loc"] if part != "[key]")
    where = (*place, *inside)
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "missing":
        return file.error(where, "is missing", f"add it{more}")
    if first["type"] == "extra_forbidden":
        return file.error(where, "unknown key", nearest(str(inside[-1]), _keys_at(model, inside[:-1])) + more)
    if first["type"] == "value_error":
        problem, _, fix = str(first["ctx"]["error"]).partition("; ")
        return file.error(where, problem, fix + more)
    expected = first["msg"].removeprefix("Input should be ")
    return file.error(where, f"{file.seen(where, first['input'])} cannot be used", f"it should be {expected}{more}")


def _keys_at(model: type[BaseModel], place: Place) -> list[str]:
    """Return the keys that a model knows at a place inside it."""
    kind: object = model
    for part in place:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
        else:  # an element of a tuple or a dict
            kind = [argument for argument in get_args(kind) if argument is not Ellipsis][-1]
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
