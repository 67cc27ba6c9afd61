"""The table of all constants behind a plan."""

from rich.table import Table

from ..model.constants import MEANINGS
from ..model.hardware import HardwareProfile
from ..model.host import HostProfile


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


def host_table(host: HostProfile) -> Table:
    """Return a table of what ranks of a machine do in a second, with what it means."""
    table = Table("constant", "value", "meaning", box=None, pad_edge=False)
    for way, rates in (("forward", host.forward), ("backward", host.backward)):
        for name, unit, in_si, meaning in (
            ("flop_s", "ms/GFLOP", 1e-12, "matrix products"),
            ("kept_byte_s", "ms/MB", 1e-9, "numbers that are kept for the way back"),
            ("parameter_s", "ms/M", 1e-9, "parameters, whatever the micro-batch"),
            ("layer_s", "ms", 1e-3, "fixed cost of a decoder layer, for each micro-batch"),
        ):
            table.add_row(f"{way} {name}", f"{getattr(rates, name) / in_si:.3g} {unit}", meaning)
    speeds = ", ".join(f"{it:.2f}" for it in host.speeds)
    table.add_row("speeds", speeds, f"of a rank where 1, 2, 3 and so on are busy, on {host.cores} cores")
    for it in host.reduce:
        told = f"{1e3 * it.start_s:.3g} ms + {it.byte_s / 1e-9:.3g} ms/MB"
        table.add_row("reduce", told, f"sum of gradients over {it.members} members")
    sent = f"{1e3 * host.send.start_s:.3g} ms + {host.send.byte_s / 1e-9:.3g} ms/MB"
    table.add_row("send", sent, "activations to the next stage")
    updated = f"{1e3 * host.update_start_s:.3g} ms + {host.update_parameter_s / 1e-9:.3g} ms/M"
    table.add_row("update", updated, "optimizer, for a million parameters")
    bound = f"times the prediction: at most so long are {host.accuracy.bound_share:.0%} of layers"
    table.add_row("bound_factor", f"{host.accuracy.bound_factor:.3g}", bound)
    return table
