"""What earlier versions called things in checkpoints, run folders and options, with today's names.

Files that were written then are read as if they had today's names. Nothing is written with an old name.
"""

from collections.abc import Mapping

_TODAY: Mapping[str, Mapping[str, str]] = {
    "preset": {"source4": "patent4-ours", "source64": "patent64-ours"},
    "network": {"moves": "candidates"},
    "observation": {"source": "patent", "source-literal": "patent-literal"},
    "globals": {"moves": "candidates"},
    "state": {"moves": "candidates"}
    | {f"move_{name}": f"candidate_{name}" for name in ("job", "delay_s", "s", "hole", "size", "sign", "node")},
}


def todays_name(field: str, value: str) -> str:
    """Return the value of a field by today's name."""
    return _TODAY.get(field, {}).get(value, value)


def with_todays_names(content: object) -> object:
    """Return what was read from a file with today's names; what is no mapping comes back as it is."""
    if not isinstance(content, dict):
        return content
    return content | {field: _renamed(field, content[field]) for field in _TODAY.keys() & content.keys()}


def _renamed(field: str, value: object) -> object:
    if isinstance(value, list | tuple):
        return [_renamed(field, each) for each in value]
    return todays_name(field, value) if isinstance(value, str) else value
