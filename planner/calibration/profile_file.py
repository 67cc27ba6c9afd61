"""Hardware profiles as files.

Source: SPEC P1.
"""

from pathlib import Path

import yaml

from ...cluster.files.output_file import write_text
from ...cluster.files.yaml_file import read_yaml, validated
from ..model.hardware import HardwareProfile

HEAD = (
    "# A hardware profile for `longshore plan --hardware`, by `longshore planner calibrate`. Units are in the names.\n"
)


def read_hardware(path: Path) -> HardwareProfile:
    """Return a hardware profile.

    Raises:
        InputError: If the file cannot be used.
    """
    file = read_yaml(path, "docs/planner.md")
    return validated(file, HardwareProfile, file.data)


def write_hardware(path: Path, profile: HardwareProfile) -> None:
    """Write a hardware profile.

    Raises:
        InputError: If it cannot be written.
    """
    write_text(path, HEAD + yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
