"""Detectors by name: ours and those that other packages register."""

from ....cluster.files.errors import PluginError
from ....cluster.files.plugins import load, registered
from .protocol import Detector


def new_detector(name: str) -> Detector:
    """Return a new detector that has seen no step.

    Args:
        name: What it is registered under: anything that gives a detector when it is called.

    Raises:
        PluginError: If nothing of that name is registered, or what it gives is no detector.
    """
    make = load("detectors", name)
    try:
        made: object = make()
    except Exception as error:  # a stranger's code may fail in any way
        raise PluginError(f"{_where(name)} cannot be made: {error}") from error
    if not isinstance(made, Detector):
        missing = [part for part in ("is_ready", "is_slow", "slow_steps", "tell") if not hasattr(made, part)]
        raise PluginError(f"{_where(name)} lacks part of the detector protocol: {', '.join(missing)}")
    return made


def _where(name: str) -> str:
    return f"detector {name!r} ({registered('detectors')[name].value})"
