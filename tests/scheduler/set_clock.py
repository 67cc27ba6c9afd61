"""A wall clock that a test sets for processes that it starts, as a time server sets that of a machine."""

import shutil
import struct
from pathlib import Path

import pytest

from tests.support import processes

SOURCE = Path(__file__).with_name("set_clock.c")


class SetClock:
    """The clock of processes with a certain environment.

    Args:
        folder: For what it needs.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler is installed")
        library, self._file = folder / "set_clock.so", folder / "set_clock"
        processes.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        self._file.write_bytes(struct.pack("l", 0))
        self.environment = {"LD_PRELOAD": str(library), "SET_CLOCK": str(self._file)}

    def set(self, by_s: int) -> None:
        """Set the clock by so many seconds from what the machine has, in all of these processes at once."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("l", by_s))
