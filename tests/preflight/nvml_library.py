"""A C library of our own in place of NVIDIA's: four GPUs, of which the last is lost. No real driver is asked."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import processes

SOURCE = Path(__file__).parent / "nvml_stub.c"


def build_nvml(folder: Path) -> Path:
    """Build it in a folder for `LD_LIBRARY_PATH`, and return that."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the library in place of NVML")
    if find_spec("pynvml") is None:
        pytest.skip("nvidia-ml-py is not installed")
    processes.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder
