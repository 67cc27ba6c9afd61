"""JSON files that hold one list of objects, with errors that name the line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import InputError, raise_all
from .input_problems import MOST_TOLD, input_problems
from .text import open_text, shown

SPACE = " \t\r\n"

Model = TypeVar("Model", bound=BaseModel)


def read_json_array(path: Path, model: type[Model]) -> Iterator[tuple[int, Model]]:
    """Yield the one-based first line and the contents of each object of a list.

    Args:
        path: The file.
        model: What each object must be; types are not converted.

    Raises:
        InputError: If the file is not a JSON list of such objects.
    """
    with open_text(path) as file:
        text = file.read()
    if not text.strip():
        raise InputError("the file is empty", "give a file with a JSON list", path=path)
    line, counted = 1, 0
    for start, item in _items(path, text):
        line, counted = line + text.count("\n", counted, start), start
        yield line, _checked(path, line, item, model)


def _items(path: Path, text: str) -> Iterator[tuple[int, object]]:
    """Yield where each item of the list begins, and the item."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    at = _expect(path, text, 0, "[")
    while text[at : at + 1] != "]":
        try:
            item, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise _not_json(path, text, error.pos, error.msg) from error
        except (RecursionError, ValueError) as error:
            raise _not_json(path, text, at, str(error)) from error
        yield at, item
        at = _skip(text, end)
        if text[at : at + 1] != "]":
            at = _expect(path, text, at, ",")
            if text[at : at + 1] == "]":
                raise _not_json(path, text, at, "a comma before the end of the list")
    if _expect(path, text, at, "]") != len(text):
        raise _not_json(path, text, at + 1, "text after the end of the list")


def _expect(path: Path, text: str, at: int, character: str) -> int:
    """Return where the next thing after the character begins."""
    at = _skip(text, at)
    if text[at : at + 1] != character:
        seen = shown(text[at]) if at < len(text) else "the end of the file"
        raise _not_json(path, text, at, f"{seen} where {character!r} is needed")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _not_json(path: Path, text: str, at: int, problem: str) -> InputError:
    line = text.count("\n", 0, at) + 1
    return InputError(f"is not a JSON list: {problem}", "mend it; the file may be cut off", path=path, line=line)


def _checked(path: Path, line: int, item: object, model: type[Model]) -> Model:
    try:
        return model.model_validate(item, strict=True)
    except ValidationError as error:
        found = input_problems(error.errors(include_url=False)[:MOST_TOLD], model.model_json_schema(), item)
        raise_all(
            InputError(
                it.problem, f"{it.fix}, or drop the row", path=path, line=line, field=".".join(map(str, it.place))
            )
            for it in found
        )
        raise AssertionError("an error has a cause") from error
