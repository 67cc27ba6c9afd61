"""Dataclasses of exactly known types as what JSON knows, and back.

The process that coordinates a ring imports this module: standard library only.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints


def as_json(value: Any) -> Any:
    """Return a dataclass, or a part of one, as what JSON knows."""
    if is_dataclass(value):
        return {one.name: as_json(getattr(value, one.name)) for one in fields(value)}
    return [as_json(one) for one in value] if isinstance(value, list) else value


def from_json(content: Any, kind: Any) -> Any:
    """Return what a dataclass or a part of one holds, of exactly the types that its class has.

    Raises:
        ValueError: If the types are others, or numbers are not of this world.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if not isinstance(content, dict) or not content.keys() <= hints.keys():
            raise ValueError(f"not the fields of {kind.__name__}: {str(content)[:80]}")
        try:
            return kind(**{name: from_json(value, hints[name]) for name, value in content.items()})
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from error
    if get_origin(kind) is list and isinstance(content, list):
        return [from_json(one, get_args(kind)[0]) for one in content]
    if get_origin(kind) is dict and isinstance(content, dict):
        return {name: from_json(one, get_args(kind)[1]) for name, one in content.items()}
    if kind is float and type(content) in (int, float) and abs(content) < 1e18:
        return float(content)
    if type(content) is kind and (kind is not int or abs(content) < 1 << 53):
        return content
    raise ValueError(f"not a {kind}: {str(content)[:80]}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
