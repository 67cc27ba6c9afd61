"""Hardware profiles as files."""

from pathlib import Path

from ..cluster.files.errors import InputError
from ..cluster.files.output_file import write_text
from ..cluster.files.yaml_file import read_yaml, validated, yaml_text
from .model import (
    HardwareProfile,
    HostProfile,
)

HEAD = "# A profile for `longshore plan find --hardware`, by `longshore plan calibrate`. Units are in the names.\n"


HOST_HEAD = HEAD.replace("calibrate", "measure")


def read_hardware(path: Path) -> HardwareProfile | HostProfile:
    """Return a hardware profile, of GPUs or of this machine's ranks.

    Raises:
        InputError: If the file cannot be used.
    """
    file = read_yaml(path, "docs/planner.md")
    if isinstance(file.data, dict) and str(file.data.get("format")).startswith("longshore-host"):
        return validated(file, HostProfile, file.data)
    return validated(file, HardwareProfile, file.data)


def read_gpus(path: Path) -> HardwareProfile:
    """Return a hardware profile of GPUs.

    Raises:
        InputError: If the file cannot be used, or is of this machine's ranks.
    """
    found = read_hardware(path)
    if isinstance(found, HostProfile):
        raise InputError("it is of ranks of a machine without GPUs", "give one of `plan calibrate`", path=path)
    return found


def write_hardware(path: Path, profile: HardwareProfile | HostProfile) -> None:
    """Write a hardware profile.

    Raises:
        InputError: If it cannot be written.
    """
    head = HOST_HEAD if isinstance(profile, HostProfile) else HEAD
    write_text(path, head + yaml_text(profile.model_dump(mode="json")))
