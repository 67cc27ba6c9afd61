"""The table of all constants behind a plan."""

from rich.table import Table

from ..model.constants import MEANINGS
from ..model.hardware import HardwareProfile


def constants_table(hardware: HardwareProfile) -> Table:
    """Return a table of every constant, with its value and what it means."""
    table = Table("constant", "value", "meaning", box=None, pad_edge=False)
    for name, value in hardware.values._asdict().items():
        meaning = MEANINGS[name]
        unsure = "; the runs do not tell it" if name in hardware.not_identified else ""
        table.add_row(name, f"{value / meaning.in_si:.3g} {meaning.unit}".strip(), meaning.text + unsure)
    on, accuracy = hardware.measured_on, hardware.accuracy
    bound = f"times the prediction: at most so long are {accuracy.bound_share:.0%} of runs"
    table.add_row("bound_factor", f"{accuracy.bound_factor:.3g}", bound)
    memory = "memory of a GPU, which the optimizer goes through"
    table.add_row("memory_bytes_per_s", f"{on.memory_bytes_per_s / 1e9:.4g} GB/s", memory)
    return table
