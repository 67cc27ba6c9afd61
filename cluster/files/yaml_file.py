"""YAML and JSON files read safely, with errors that name the line and the key, and models that take exact types.

By itself pydantic takes `true` for the number 1, and the text "4" for the number 4.
"""

import json
import re
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from .errors import InputError, raise_all
from .input_problems import MAX_REPORTED, Place, input_problems, open_text, shortened, shown_value

MAX_YAML_BYTES = 1_000_000  # far beyond any file written by hand, and read in less than 2 s
MAX_DIGITS = 100  # of a number; whole ones of any length would be read, and those of base 60 for half a minute
MAX_DEPTH = 200  # of brackets in brackets; libyaml crashes at some ten thousands
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# libyaml, which PyYAML's wheels hold, is ten times as fast as what is written in Python.
_Fastest = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Model = TypeVar("Model", bound=BaseModel)


class TextLoader(_Fastest):  # type: ignore[misc, valid-type]  # which of the two is known only here
    """Reads 125e12 as a number and `off`, `on`, `yes` and `no` as words, as YAML 1.2 does."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:  # noqa: FBT001, FBT002  # PyYAML's
        """Return what a node holds.

        Raises:
            yaml.MarkedYAMLError: If its text is not of its tag, as in `!!int x`, which PyYAML raises anything for.
        """
        try:
            return super().construct_object(node, deep=deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"{shortened(node.value)} cannot be read as {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


# Digits can be shared out in one way only: with two, a million of them would be tried for hours.
FLOAT = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
TextLoader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
TextLoader.yaml_implicit_resolvers |= {
    first: [(tag, words) for tag, words in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in TextLoader.yaml_implicit_resolvers.items()
    if first in "yYnNoO"
}


class TextDumper(yaml.SafeDumper):
    """Writes what `TextLoader` reads as the same: words that look like numbers in quotes, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Write each value out."""
        del data
        return True


BREAKS = {"\x85", "\u2028", "\u2029"}  # ends of lines by Unicode: they are kept in double quotes alone


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if BREAKS & set(text) else None)


TextDumper.add_representer(str, _represent_text)
TextDumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def yaml_text(data: object) -> str:
    """Return plain data as the text of a file that `read_yaml` reads back.

    Raises:
        InputError: If it is longer than a file that is read.
    """
    text: str = yaml.dump(data, Dumper=TextDumper, sort_keys=False, allow_unicode=True)
    if len(text.encode("utf-8", "backslashreplace")) > MAX_YAML_BYTES:
        raise InputError(f"the file would have more than {MAX_YAML_BYTES} bytes, and not be read", "write a part of it")
    return text


@dataclass(frozen=True, slots=True)
class YamlFile:
    """What a YAML file holds, and where."""

    path: Path
    data: object
    root: yaml.MappingNode

    def error(self, place: Place, problem: str, fix: str = "") -> InputError:
        """Return an error at a place, or at the nearest one above it that the file has."""
        line, _ = _line_and_node_at(self.root, place)
        field = ".".join(str(part) for part in place)
        return InputError(problem, fix, path=self.path, line=line, field=field)

    def text_at(self, place: Place, value: object) -> str:
        """Return the text of the file at a place, shortened; the value's own form where it is not one word."""
        _, node = _line_and_node_at(self.root, place)
        return shortened(node.value if isinstance(node, yaml.ScalarNode) else value)


def read_yaml(path: Path, page: str) -> YamlFile:
    """Return what a YAML file of keys and values holds.

    Args:
        path: The file.
        page: Of the documentation, which describes the file.

    Raises:
        InputError: If the file cannot be read, is empty, is not YAML, uses anchors, repeats a key, or has a key that
            is no word.
    """
    text = _read_text(path)
    try:
        _check_depth(text, path)
        loader = TextLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise InputError("the file is empty", f"{page} describes what it holds", path=path)
        if not isinstance(root, yaml.MappingNode):
            fix = f"write `key: value` lines, as {page} describes"
            raise InputError("the file does not hold keys and values", fix, path=path, line=1)
        misread = list(_misread_problems(root, path, set()))
        raise_all([*misread[:MAX_REPORTED], *omitted_problems(path, misread)])
        return YamlFile(path, loader.construct_document(root), root)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        fix = "correct this line or the one before"
        raise InputError(f"not YAML: {error.problem}", fix, path=path, line=line) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: characters that are none, where there is no libyaml
        raise InputError(f"not YAML: {str(error).splitlines()[0]}", "correct the file", path=path) from error


def _check_depth(text: str, path: Path) -> None:
    """Refuse a file that is nested too deeply, before anything calls itself for each level.

    Raises:
        InputError: If it is.
        yaml.MarkedYAMLError: If it is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Fastest):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InputError("nested too deeply", "write the file without brackets in brackets", path=path)


def validated(file: YamlFile, model: type[Model], data: object, place: Place = ()) -> Model:
    """Return a part of a file as a model.

    Args:
        file: Names the lines in errors.
        model: What the part should be.
        data: The part.
        place: Where it stands in the file.

    Raises:
        InputError: Naming the values that do not fit, with their lines; of many the first, and how many more there are.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        found = input_problems(
            wrong[:MAX_REPORTED], model.model_json_schema(), data,
            lambda inside, value: file.text_at((*place, *inside), value),
        )  # fmt: skip
        errors = [file.error((*place, *problem.place), problem.problem, problem.fix) for problem in found]
        raise_all([*sorted(errors, key=lambda error: error.line or 0), *omitted_problems(file.path, wrong)])
        raise AssertionError("an error has a cause") from error


def omitted_problems(path: Path, wrong: Sized) -> Iterator[InputError]:
    """Yield the number of problems of a file beyond the first, which are reported one by one."""
    more = len(wrong) - MAX_REPORTED
    if more > 0:
        yield InputError(f"{more:,} more of its values cannot be used", "correct those above first", path=path)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_YAML_BYTES + 1)  # not by its size: a device has none
        if len(content) > MAX_YAML_BYTES:
            raise InputError(f"the file has more than {MAX_YAML_BYTES} bytes", "is it the right file?", path=path)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8", "save the file as UTF-8", path=path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "check the path", path=path) from error


def _misread_problems(node: yaml.Node, path: Path, met: set[int]) -> Iterator[InputError]:
    """Find what would be read as something else than its text suggests, or not within seconds.

    Repeated keys, keys that are lists or groups of keys, copies by anchor, and numbers of thousands of digits.
    """
    line = node.start_mark.line + 1
    if id(node) in met:
        yield InputError("anchors and aliases are not supported", "write the value out", path=path, line=line)
        return
    met.add(id(node))
    if node.tag in NUMBERS and len(node.value) > MAX_DIGITS:
        yield InputError(f"the number {shortened(node.value)} is too long", "write fewer digits", path=path, line=line)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _misread_problems(item, path, met)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            at = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):  # as text it would be written out once for each key inside it
                yield InputError("a key must be one word", "write `key: value`, with no brackets before the colon",
                                 path=path, line=at)  # fmt: skip
                continue
            if key.value in keys:
                yield InputError(f"the key {shortened(key.value)} stands twice", "drop one of them", path=path, line=at)
            keys.add(key.value)
            yield from _misread_problems(key, path, met)
            yield from _misread_problems(value, path, met)


def _line_and_node_at(root: yaml.Node, place: Place) -> tuple[int, yaml.Node | None]:
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


Kinds = frozenset[type]


class ExactTypes(BaseModel):
    """A model whose numbers are given as numbers, and whose booleans as `true` and `false`."""

    _kinds_of: ClassVar[dict[str, Kinds]]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Read the types once: job files come by the thousand."""
        cls._kinds_of = {name: _allowed_types(field.annotation) for name, field in cls.model_fields.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _check_exact_type(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool | int | float | str):
            _check_type(value, cls._kinds_of[str(info.field_name)])
        return value


def _check_type(value: object, kinds: Kinds) -> None:
    numbers = kinds & {int, float}
    if isinstance(value, str) and str not in kinds and (numbers or bool in kinds):
        raise PydanticKnownError(_type_error_code(kinds))
    if isinstance(value, bool) and bool not in kinds and numbers:
        raise PydanticKnownError(_type_error_code(kinds))
    if isinstance(value, int | float) and not isinstance(value, bool) and bool in kinds and not numbers:
        raise PydanticKnownError("bool_type")


def _type_error_code(kinds: Kinds) -> Literal["float_type", "int_type", "bool_type"]:
    if float in kinds:
        return "float_type"
    return "int_type" if int in kinds else "bool_type"


def _allowed_types(annotation: Any) -> Kinds:
    """Return the plain types that an annotation allows."""
    origin = get_origin(annotation)
    if origin is Literal:
        return frozenset(map(type, get_args(annotation)))
    if origin is Annotated:
        return _allowed_types(get_args(annotation)[0])
    if isinstance(annotation, type):
        return frozenset({str} if issubclass(annotation, Enum) else {annotation})
    # Items of a list are no values of the field itself.
    parts = () if isinstance(origin, type) and issubclass(origin, tuple | list | dict) else get_args(annotation)
    return frozenset[type]().union(*map(_allowed_types, parts))


SPACE = " \t\r\n"


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
    for start, item in _json_items(path, text):
        line, counted = line + text.count("\n", counted, start), start
        yield line, _validated_item(path, line, item, model)


def _json_items(path: Path, text: str) -> Iterator[tuple[int, object]]:
    """Yield where each item of the list begins, and the item."""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    at = _position_after(path, text, 0, "[")
    while text[at : at + 1] != "]":
        try:
            item, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise _not_json_error(path, text, error.pos, error.msg) from error
        except (RecursionError, ValueError) as error:
            raise _not_json_error(path, text, at, str(error)) from error
        yield at, item
        at = _skip_space(text, end)
        if text[at : at + 1] != "]":
            at = _position_after(path, text, at, ",")
            if text[at : at + 1] == "]":
                raise _not_json_error(path, text, at, "a comma before the end of the list")
    if _position_after(path, text, at, "]") != len(text):
        raise _not_json_error(path, text, at + 1, "text after the end of the list")


def _position_after(path: Path, text: str, at: int, character: str) -> int:
    """Return where the text goes on after the character and white space."""
    at = _skip_space(text, at)
    if text[at : at + 1] != character:
        seen = shown_value(text[at]) if at < len(text) else "the end of the file"
        raise _not_json_error(path, text, at, f"{seen} where {character!r} is needed")
    return _skip_space(text, at + 1)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _not_json_error(path: Path, text: str, at: int, problem: str) -> InputError:
    line = text.count("\n", 0, at) + 1
    return InputError(f"is not a JSON list: {problem}", "mend it; the file may be cut off", path=path, line=line)


def _validated_item(path: Path, line: int, item: object, model: type[Model]) -> Model:
    try:
        return model.model_validate(item, strict=True)
    except ValidationError as error:
        found = input_problems(error.errors(include_url=False)[:MAX_REPORTED], model.model_json_schema(), item)
        raise_all(
            InputError(
                problem.problem,
                f"{problem.fix}, or drop the row",
                path=path,
                line=line,
                field=".".join(map(str, problem.place)),
            )
            for problem in found
        )
        raise AssertionError("an error has a cause") from error
