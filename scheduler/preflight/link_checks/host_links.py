"""The link between a GPU and its host."""

from collections.abc import Iterator

from ..check import Check, Compared, Finding, Need, failed, passed, skipped
from ..context import Context

COPY_BYTES = 32 << 20
RESEAT = "reseat the card; replace the riser"


def width(context: Context) -> Iterator[Finding]:
    """Look whether the link is as wide as it can be. Its generation falls when it is idle, so it is not judged."""
    for gpu in context.chosen.gpus:
        link = None if context.gpu_reader is None else context.gpu_reader.pcie(gpu)
        device = f"gpu {gpu}"
        if link is None:
            yield skipped("the GPU does not tell", device)
        elif link.width < link.most_width:
            yield failed(
                device, f"width {link.width}, generation {link.generation}", f"width {link.most_width}", RESEAT
            )
        else:
            yield passed(device, got=f"width {link.width}")


def copy_and_back(context: Context) -> Iterator[Finding]:
    """Copy bytes to each GPU and back, and tell how fast that is: the link, and not the host's copies beside it."""
    import time

    import torch

    sent = torch.arange(COPY_BYTES // 4, dtype=torch.int32).pin_memory()
    came = torch.empty_like(sent).pin_memory()
    for gpu in context.chosen.gpus:
        where, device = context.where(gpu), f"gpu {gpu}"
        there = torch.zeros_like(sent, device=where)
        came.zero_()  # what came from the GPU before would hide a copy that does nothing
        torch.cuda.synchronize(where)
        begin_s = time.perf_counter()
        there.copy_(sent, non_blocking=True)
        came.copy_(there, non_blocking=True)
        torch.cuda.synchronize(where)
        took_s = time.perf_counter() - begin_s
        wrong = int((came != sent).sum())
        if wrong:
            first = int((came != sent).nonzero()[0])
            yield failed(device, f"{wrong} of {len(sent)} words differ, the first at {first}", "none", RESEAT)
        else:
            rate = 2 * COPY_BYTES / took_s
            yield passed(device, figure=rate, got=f"{rate / 1e9:.3g} GB/s")


def not_far_slower(told: Compared) -> Compared:
    """Return whose copies are at half the speed of the median, or slower."""
    rates = sorted(finding.figure for finding in told.values() if finding.figure is not None)
    median = rates[len(rates) // 2]
    return {
        node: failed(
            finding.device, finding.got, f"half of {median / 1e9:.3g} GB/s, the median", "pcie.link; " + RESEAT
        )
        for node, finding in told.items()
        if finding.figure is not None and finding.figure < median / 2
    }


PCIE = Check("pcie.link", 0, "the link to the host is as wide as it can be", 0.5, width, (Need.GPU, Need.HOST))
COPY = Check(
    "copy.h2d", 1, "bytes come back from the GPU as they were", 1.0, copy_and_back, (Need.GPU, Need.HOST),
    compare=not_far_slower,
)  # fmt: skip
