"""What is wrong with input, in plain words, with the file and the line.

Pydantic reports where and how input differs from a model. What should be there is in the model's JSON schema, so that a
message names all that a value must be, whatever kind of error pydantic reports.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from .errors import InputError

Place = tuple[str | int, ...]  # keys and list indices from the root
Schema = Mapping[str, Any]
MISSING, DID_YOU_MEAN = "is missing", re.compile("did you mean '(.*)'\\?")
MAX_REPORTED = 20  # problems of one input that are reported one by one: each takes a while to put into words
MAX_NAMES, MAX_LETTERS = 300, 40  # of those that are known, with which a name is compared, which takes their square
_BARE = re.compile(r"[+-]?[0-9.]{1,20}(?:e[+-]?[0-9]{1,3})?|true|false", re.IGNORECASE)  # would be no text unquoted
KEY = "[key]"  # ends the place of an error about the key of a mapping


class InputProblem(NamedTuple):
    """One problem of an input."""

    place: Place
    problem: str  # with the value as it was seen
    fix: str


def name_advice(name: str, known: Iterable[str]) -> str:
    """Return the advice for a name that is not known: the nearest known one if there is one, else all."""
    names = list(islice(known, MAX_NAMES))
    if not names:
        return "drop it; no key is known here"
    short = [name for name in names if len(name) <= MAX_LETTERS]
    close = difflib.get_close_matches(name, short, n=1) if len(name) <= MAX_LETTERS else []
    return f"did you mean {shortened(close[0])}?" if close else f"known: {shortened(', '.join(names[:20]), 400)[1:-1]}"


def shortened(value: object, max_characters: int = 60) -> str:
    """Return a value as a message shows it, in `max_characters` characters at most."""
    text = str(value)
    return repr(text if len(text) <= max_characters else text[: max_characters - 3] + "...")


def input_problems(
    errors: Sequence[Mapping[str, Any]],
    schema: Schema,
    data: object,
    seen: Callable[[Place, object], str] = lambda _, value: shortened(value),
) -> list[InputProblem]:
    """Return all that is wrong with input: one problem for each place.

    Args:
        errors: As pydantic lists them.
        schema: JSON schema of what was expected, with what it refers to.
        data: The input.
        seen: Returns what the input has at a place, as text.
    """
    found: dict[Place, InputProblem] = {}
    for error in errors:
        if _lacks_wrong_items(error):
            continue
        place = _place_of_error(data, error)
        found.setdefault(place, _problem_of_error(error, place, schema, seen))
    # A misspelt key is also a missing one: the spelling is what helps.
    meant = {
        (*problem.place[:-1], close[1]) for problem in found.values() if (close := DID_YOU_MEAN.fullmatch(problem.fix))
    }
    return [problem for problem in found.values() if problem.problem != MISSING or problem.place not in meant]


def _lacks_wrong_items(error: Mapping[str, Any]) -> bool:
    """Return whether a list counts as too short only because pydantic omits items that it reports on their own."""
    given, least = error.get("input"), error.get("ctx", {}).get("min_length", 0)
    return error["type"] == "too_short" and isinstance(given, list | tuple) and len(given) >= least


def expected_words(schema: Schema, root: Schema) -> str:
    """Return in words what a JSON schema expects, "" if it expects nothing. A pattern is given by its description.

    Args:
        schema: The schema.
        root: The document that its references point into.
    """
    schema = _resolved_reference(schema, root)
    either = [branch for branch in schema.get("anyOf", schema.get("oneOf", ())) if branch.get("type") != "null"]
    if either:
        return ", or ".join(expected_words(branch, root) for branch in either)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if values:
        words = [value if isinstance(value, str) else str(value).lower() for value in values]
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    if "pattern" in schema and "description" in schema:
        return _description_as_words(schema["description"])
    return _expected_type_words(schema)


def _expected_type_words(schema: Schema) -> str:
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _bounds_words(schema)
    if kind == "boolean":
        return "true or false"
    if kind == "object":
        return "keys with values"
    if kind == "array":
        count = _count_words(schema.get("minItems", 0), schema.get("maxItems"), "values")
        return f"a list{count and f' of {count}'}"
    if kind != "string":
        return ""
    count = _count_words(schema.get("minLength", 0), schema.get("maxLength"), "characters")
    return "a path" if schema.get("format") == "path" else f"text{count and f' of {count}'}"


def _bounds_words(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if least is not None and most is not None:
        return f" from {_number_text(least)} to {_number_text(most)}"
    words = [("above", above), ("of at least", least), ("below", below), ("at most", most)]
    bounds = [f"{word} {_number_text(value)}" for word, value in words if value is not None]
    return " " + " and ".join(bounds) if bounds else ""


def _number_text(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e9 else f"{value:g}"


def _count_words(least: int, most: int | None, noun: str) -> str:
    if most is None:
        return f"at least {least} {noun}" if least > 1 else f"one or more {noun}" if least else ""
    return f"{least} to {most} {noun}" if least else f"at most {most} {noun}"


def _problem_of_error(
    error: Mapping[str, Any], place: Place, root: Schema, seen: Callable[[Place, object], str]
) -> InputProblem:
    kind, given = error["type"], error["input"]
    if kind in ("missing", "missing_argument"):
        return InputProblem(place, MISSING, "add it")
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return InputProblem(
            place, "unknown key", name_advice(str(place[-1]), _known_keys(_schema_at(root, place[:-1]), root))
        )
    if kind == "value_error":
        problem, _, fix = str(error["ctx"]["error"]).partition("; ")
        return InputProblem(place, problem, fix)
    if error["loc"][-1:] == (KEY,):
        words = _expected_key_words(_schema_at(root, place[:-1]), root)
        return InputProblem(place, f"the key {shortened(given)} cannot be used", f"it should be {words}")
    there = _schema_at(root, place)
    is_secret = any(branch.get("writeOnly") for branch in _schema_branches(there, root))
    what = _wrong_shape_text(given) or f"{'the value' if is_secret else seen(place, given)} cannot be used"
    fix = _fix_text(error, expected_words(there, root))
    if isinstance(given, str) and kind in ("int_type", "float_type", "bool_type") and _BARE.fullmatch(given):
        what, fix = f'the text "{given}" cannot be used', f"{fix}; drop the quotes"
    return InputProblem(place, what, fix)


def _fix_text(error: Mapping[str, Any], should: str) -> str:
    """Return what to do about a value that is not what it should be."""
    given = error["input"]
    if not should:
        should = error["msg"].removeprefix("Input should be ")
    if error["type"] == "finite_number":
        should = should.replace("a number", "a finite number")
    fix = f"it should be {should}"
    if isinstance(given, int | float) and should.startswith("text"):
        return f"{fix}; write it in quotes"
    if isinstance(given, str) and (close := difflib.get_close_matches(given, re.split(", or |, | or ", should), n=1)):
        return f"{fix}; did you mean {shortened(close[0])}?"
    return fix


def _wrong_shape_text(given: object) -> str:
    """Return what is wrong where something stands that is not one value, nothing where it is one."""
    if given is None:
        return "has no value"
    if isinstance(given, Mapping):
        return "a group of keys cannot be used"
    if isinstance(given, list | tuple):
        return f"a list of {len(given)} values cannot be used" if given else "an empty list cannot be used"
    return ""


def _place_of_error(data: object, error: Mapping[str, Any]) -> Place:
    """Return where an error stands in the input; pydantic also names the branch of a union, which the input lacks."""
    place: Place = ()
    parts = [part for part in error["loc"] if part != KEY]
    for part in parts:
        if _has_part(data, part):
            data = data[part]  # type: ignore[index]
        elif error["type"] not in ("missing", "missing_argument") or part is not parts[-1]:
            continue
        place = (*place, part)
    return place


def _has_part(data: object, part: str | int) -> bool:
    if isinstance(data, Mapping):
        return part in data
    return isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)


def _resolved_reference(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        found: Any = root
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _schema_at(root: Schema, place: Place) -> Schema:
    """Return what is expected at a place; an empty schema where the document has none."""
    schema = root
    for part in place:
        schema = next(
            (_part_schema(branch, part) for branch in _schema_branches(schema, root) if _part_schema(branch, part)),
            {},
        )
    return schema


def _schema_branches(schema: Schema, root: Schema) -> list[Schema]:
    schema = _resolved_reference(schema, root)
    either = schema.get("anyOf", schema.get("oneOf"))
    return [_resolved_reference(branch, root) for branch in either] if either else [schema]


def _part_schema(schema: Schema, part: str | int) -> Schema:
    if isinstance(part, int) and schema.get("type") == "array":
        items = schema.get("prefixItems", ())
        found: Schema = items[part] if part < len(items) else schema.get("items", {})
        return found
    found = schema.get("properties", {}).get(part) or next(iter(schema.get("patternProperties", {}).values()), {})
    extra = schema.get("additionalProperties")
    return found or (extra if isinstance(extra, Mapping) else {})


def _known_keys(schema: Schema, root: Schema) -> list[str]:
    return [key for branch in _schema_branches(schema, root) for key in branch.get("properties", {})]


def _expected_key_words(schema: Schema, root: Schema) -> str:
    """Return what the keys of a mapping are to be."""
    for branch in _schema_branches(schema, root):
        if "patternProperties" in branch and "description" in branch:
            return _description_as_words(branch["description"])
        if "propertyNames" in branch:
            return expected_words({"type": "string", **branch["propertyNames"]}, root)
    return "text"


def _description_as_words(description: str) -> str:
    return description[:1].lower() + description[1:].rstrip(".")


HEAD_CHARACTERS = 4096  # what a format is recognised by


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file, with or without a byte-order mark, line ends as they are.

    Raises:
        InputError: If the file cannot be opened or, while it is read, holds bytes that are not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        fix = "unpack the file if it is compressed, or save it as UTF-8"
        raise InputError(
            f"byte 0x{byte:02x} is not UTF-8 text", fix, path=path, line=_undecodable_line(path)
        ) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "check the name and its rights", path=path) from error


def read_head(path: Path) -> str:
    """Return the first 4,096 characters of a file.

    Raises:
        InputError: If the file cannot be read, or is empty.
    """
    with open_text(path) as file:
        head = file.read(HEAD_CHARACTERS)
    if not head.strip():
        raise InputError("the file is empty", "give a file with jobs", path=path)
    return head


def shown_value(value: object) -> str:
    """Return a value from a file as a message can show it: quoted if text, and not too long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


def _undecodable_line(path: Path) -> int | None:
    with path.open("rb") as file:
        for line, content in enumerate(file, start=1):
            try:
                content.decode("utf-8")
            except UnicodeDecodeError:
                return line
    return None
