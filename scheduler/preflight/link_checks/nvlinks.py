"""Links between GPUs. Only those between two chosen GPUs count; others are reported.

Source: SPEC C3.
"""

from collections.abc import Callable, Iterator, Sequence

from ..check import Check, Finding, Need, Stage, failed, passed, skipped, warned
from ..context import Context
from ..readers.gpu_reader import NvLink

RESET = "reset the GPUs; look at fabric manager and bridge"


def state(context: Context) -> Iterator[Finding]:
    """Look whether links are up."""
    for gpu, links, counts in _links(context):
        if links is None:
            yield skipped("the GPU has no links to others, or does not tell", f"gpu {gpu}")
            continue
        for link in links:
            device, far = f"gpu {gpu} link {link.link}", link.remote_pci or "not told"
            if link.active:
                yield passed(device)
            elif counts(link):
                yield failed(device, f"down, to {far}", "up", RESET)
            else:
                yield warned(device, f"down, to {far}", "up; no chosen GPU is behind it", RESET)


def errors(context: Context) -> Iterator[Finding]:
    """Look whether a link was set up again, or repeated what it sent, since one last looked."""
    for gpu, links, counts in _links(context):
        for link in links or ():
            device = f"gpu {gpu} link {link.link}"
            values = {"recoveries": link.recoveries, "replays": link.replays, "crc errors": link.crc_errors}
            told = {name: value for name, value in values.items() if value is not None}
            if not told:
                yield skipped("the GPU does not count faults of this link", device)
                continue
            looked = context.counters.look(device, told)
            rose = {name: (before, now) for name, (before, now) in looked.items() if now > before}
            yield from _judge(device, rose, matters=counts(link))


def _judge(device: str, rose: dict[str, tuple[int, int]], *, matters: bool) -> Iterator[Finding]:
    got = ", ".join(f"{name} rose from {before} to {now}" for name, (before, now) in rose.items())
    if not rose:
        yield passed(device)
    elif matters and "recoveries" in rose:
        yield failed(device, got, "no recovery", RESET)
    else:
        yield warned(device, got, "none", RESET)


def _links(context: Context) -> Iterator[tuple[int, Sequence[NvLink] | None, Callable[[NvLink], bool]]]:
    """Yield each chosen GPU, its links, and what says whether a link counts.

    It counts if at its other end is a chosen GPU, a switch, or what is not told.
    """
    reader = context.gpu_reader
    if reader is None:
        return
    pci = {gpu.index: _short(gpu.pci) for gpu in reader.gpus()}
    chosen = {pci[index] for index in context.chosen.gpus if index in pci}
    others = set(pci.values()) - chosen
    for gpu in context.chosen.gpus:
        yield gpu, reader.nvlinks(gpu), lambda link: _short(link.remote_pci) not in others


def _short(pci: str) -> str:
    """Return a PCI address without its domain, of which some calls tell four digits and others eight."""
    return pci.lower().partition(":")[2].partition(".")[0]


STATE = Check("nvlink.state", 0, "links between chosen GPUs are up", 0.5, state, (Need.NVLINK, Need.GPU))
ERRORS = Check(
    "nvlink.errors", 0, "links between chosen GPUs had no faults since one last looked", 0.5, errors,
    (Need.NVLINK, Need.GPU), Stage.LAST,
)  # fmt: skip
