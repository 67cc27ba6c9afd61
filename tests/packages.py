"""A stranger's package, as pip installs it: one module, and the entry points that it registers."""

import sys
from pathlib import Path

import pytest


def write_package(folder: Path, seam: str, points: dict[str, str]) -> None:
    """Make a folder look like an installed package to whoever has it on the path."""
    name = folder.name.replace("_", "-")
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {value}" for point, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[longshore.{seam}]", *lines, ""]))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, seam: str, points: dict[str, str], **modules: str) -> None:
    """Put a package on the path, until the end of the test.

    Args:
        folder: Where it is written; another one for each package.
        monkeypatch: Takes it from the path again.
        seam: What it adds to, such as "policies".
        points: The value of each entry point, by its name.
        modules: The text of each of its modules, by name.
    """
    write_package(folder, seam, points)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))
