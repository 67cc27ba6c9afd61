"""Fault models by name: ours and those that other packages register."""

from ..files.errors import PluginError
from ..files.plugins import load, registered
from .configuration import FaultModel


def fault_model(name: str) -> FaultModel:
    """Return a fault model.

    Args:
        name: What it is registered under.

    Raises:
        PluginError: If nothing of that name is registered, or it is no FaultModel.
    """
    found: object = load("faults", name)
    if not isinstance(found, FaultModel):
        where = registered("faults")[name].value
        raise PluginError(f"fault model {name!r} ({where}) is {type(found).__name__}, not a FaultModel")
    return found
