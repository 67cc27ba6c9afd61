"""Fields of files and requests that are of the JSON type that their description names.

By itself pydantic takes `true` for the number 1, and the text "4" for the number 4.
"""

from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

Kinds = frozenset[type]


class ExactTypes(BaseModel):
    """A model whose numbers are given as numbers, and whose booleans as `true` and `false`."""

    _kinds_of: ClassVar[dict[str, Kinds]]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Look up the types once: job files are read by the thousand."""
        cls._kinds_of = {name: _kinds(field.annotation) for name, field in cls.model_fields.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _is_of_its_type(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool | int | float | str):
            _check(value, cls._kinds_of[str(info.field_name)])
        return value


def _check(value: object, kinds: Kinds) -> None:
    numbers = kinds & {int, float}
    if isinstance(value, str) and str not in kinds and (numbers or bool in kinds):
        raise PydanticKnownError(_problem(kinds))
    if isinstance(value, bool) and bool not in kinds and numbers:
        raise PydanticKnownError(_problem(kinds))
    if isinstance(value, int | float) and not isinstance(value, bool) and bool in kinds and not numbers:
        raise PydanticKnownError("bool_type")


def _problem(kinds: Kinds) -> Literal["float_type", "int_type", "bool_type"]:
    if float in kinds:
        return "float_type"
    return "int_type" if int in kinds else "bool_type"


def _kinds(annotation: Any) -> Kinds:
    """Return the plain types that an annotation allows."""
    origin = get_origin(annotation)
    if origin is Literal:
        return frozenset(map(type, get_args(annotation)))
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if isinstance(annotation, type):
        return frozenset({str} if issubclass(annotation, Enum) else {annotation})
    # Items of a list are no values of the field itself.
    parts = () if isinstance(origin, type) and issubclass(origin, tuple | list | dict) else get_args(annotation)
    return frozenset[type]().union(*map(_kinds, parts))
