"""A calibration as people read it: the constants, what the runs do not tell, and how far predictions are off.

Source: SPEC P1.
"""

from collections.abc import Iterator

import numpy as np
from rich.console import Console

from ..calibration.calibrating import ENOUGH
from ..model.decoder import Runs
from ..model.hardware import HardwareProfile
from .constants_table import constants_table


def print_calibration(console: Console, profile: HardwareProfile, runs: Runs) -> None:
    """Print what came of a calibration."""
    on = profile.accuracy
    console.print(
        f"{on.runs} runs. Predictions of runs that were left out are {on.mean_error:.1%} off in the mean "
        f"({'too long' if on.bias > 0 else 'too short'} by {abs(on.bias):.1%}). {on.bound_share:.0%} of them took no "
        f"longer than {on.bound_factor:.3g} times the prediction."
    )
    console.print()
    console.print(constants_table(profile))
    console.print()
    for line in advice(profile, runs):
        console.print(line)


def advice(profile: HardwareProfile, runs: Runs) -> Iterator[str]:
    """Say what the runs lack."""
    if profile.not_identified:
        names = ", ".join(profile.not_identified)
        yield f"The runs do not tell {names}: these stay near the datasheet. Plans that hang on them are less sure."
    if profile.accuracy.runs < ENOUGH:
        yield f"{profile.accuracy.runs} runs are few: below {ENOUGH}, how far predictions are off is a matter of luck."
    columns = {"micro_batch": runs.micro_batch, "tensor": runs.tensor, "pipeline": runs.pipeline, "data": runs.data}
    same = [name for name, column in columns.items() if np.unique(column).size == 1]
    if same:
        yield f"All runs have the same {' and '.join(same)}: measure some that differ."
