"""The profile of this machine, made by processes of their own.

Source: SPEC P1.
"""

import tempfile
from pathlib import Path

from .execution.launching import launch
from .model import HostProfile


def measured_host(ranks: int) -> HostProfile:
    """Return what so many ranks of this machine do in a second.

    Args:
        ranks: Processes that plans may have; 2 cores do not make 4 of them as fast as 2.

    Raises:
        InputError: If a process fails.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-host-") as folder:
        path = Path(folder) / "host.json"
        launch(ranks, [str(path)], module="longshore.planner.measuring_worker")
        return HostProfile.model_validate_json(path.read_text(encoding="utf-8"))
