"""All figures of a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import InputError
from ...cluster.model.outcome import Event, Outcome
from ...cluster.model.scenarios import Scenarios
from ..comparison import Comparison
from .drawing import Picture
from .policies import differences, forest, jct_distribution
from .schedules import gantt, use


def pictures(
    comparison: Comparison,
    outcomes: Mapping[str, Outcome],
    scenarios: Scenarios,
    *,
    events: Mapping[str, Sequence[Event]],
    which: str,
    gpu_node: NDArray[np.int32],
) -> list[Picture]:
    """Return all figures of a report.

    Args:
        comparison: The policies side by side.
        outcomes: What was compared.
        scenarios: The scenarios.
        events: Events of one scenario under some of the policies, drawn in this order; may be empty.
        which: That scenario in words, such as "scenario 17 of 200".
        gpu_node: Node of each GPU, shape (gpus,).
    """
    drawn = []
    if len(comparison.policies) > 1:
        drawn += [forest(comparison), differences(comparison, comparison.challengers[0])]
    drawn.append(jct_distribution(comparison, outcomes, scenarios))
    if events:
        drawn += [use(comparison, events, gpu_node.size, which=which), gantt(events, gpu_node, which=which)]
    return drawn


def write_pictures(folder: Path, drawn: Sequence[Picture]) -> None:
    """Write each picture as a file of its name.

    Raises:
        InputError: If one cannot be written.
    """
    for picture in drawn:
        try:
            (folder / picture.name).write_bytes(picture.data)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise InputError(problem, "give another folder", path=folder / picture.name) from error
