"""Data-parallel training that outlives its members: `Ring` for scripts, and `python -m longshore.ring` to start one.

For authors of training scripts, with Longshore's scheduler or without: a coordinator, spares, and launchers of members.
Of the rest of Longshore it uses files, processes and errors alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .member import Ring as Ring

__all__ = ["Ring"]


def __getattr__(name: str) -> Any:
    """Import `Ring` at its first use: the processes beside members need the standard library alone."""
    if name != "Ring":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .member import Ring

    return Ring
