"""The checks of links: between ring neighbours, to the host, between GPUs, and of network ports.

Source: SPEC C3.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from .check import Check, Compared, Finding, Need, Stage, failed, incomplete, passed, skipped, warned
from .context import Context
from .groups import NO_ANSWER, Members, join, patience, wait_for
from .readers import FATAL, RATED, NvLink, Port

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Work

PARTS, SKIPPED = 10, 2  # the first fifth is not counted: buffers swallow it at once
LOOK_S = 0.001


class Exchange:
    """Parts that each member of a ring sends to the next.

    On a GPU they go over NCCL, for which a send ends only once the other side receives; until then nothing else need
    run there. If all sent first, all would wait for ever. So every other member receives before it sends.

    Args:
        ring: The members.
        rank: Of this one.
        size: How many members there are.
        part: What is sent, several times.
        at_most: How long to wait for others.
    """

    def __init__(self, ring: Members, rank: int, size: int, part: "Tensor", at_most: timedelta) -> None:
        self._ring, self._part, self._at_most = ring, part, at_most
        self._after, self._before, self._receives_first = (rank + 1) % size, (rank - 1) % size, rank % 2 == 1

    def took_s(self) -> float:
        """Send and receive, and return how long the parts took to come, without those that buffers swallow.

        What fails in sending is the next member's to tell, which does not receive it.

        Raises:
            RuntimeError: If the member before does not answer in time.
        """
        until_s = time.monotonic() + self._at_most.total_seconds()
        half_s = until_s - self._at_most.total_seconds() / 2.0
        if not self._part.is_cuda:
            sent: list[Work] = []
            with suppress(RuntimeError):
                sent = self._send()
            took_s = self._receive_s(until_s)
            with suppress(RuntimeError):
                _wait_for_all(sent, until_s)
        elif self._receives_first:
            try:
                took_s = self._receive_s(half_s)
            finally:
                self._send_in_turn(until_s)
        else:
            self._send_in_turn(half_s)
            took_s = self._receive_s(until_s)
        return took_s

    def _send(self) -> "list[Work]":
        return [self._ring.send([self._part], self._after, tag) for tag in range(PARTS)]

    def _send_in_turn(self, until_s: float) -> None:
        with suppress(RuntimeError):
            sent = self._send()
            _look_until(lambda: all(it.is_completed() for it in sent), until_s)

    def _receive_s(self, until_s: float) -> float:
        if self._part.is_cuda:
            return self._receive_on_gpu_s(until_s)
        awaited = self._receive(self._room())
        _wait_for_all(awaited[:SKIPPED], until_s)
        began_s = time.perf_counter()
        _wait_for_all(awaited[SKIPPED:], until_s)
        return time.perf_counter() - began_s

    def _room(self) -> "list[Tensor]":
        return [self._part.clone() for _ in range(PARTS)]

    def _receive(self, came: "list[Tensor]", first_tag: int = 0) -> "list[Work]":
        return [self._ring.recv([it], self._before, tag) for tag, it in enumerate(came, start=first_tag)]

    def _receive_on_gpu_s(self, until_s: float) -> float:
        """Receive, and return how long that took by the clock of the GPU: a thread looks far too seldom.

        A stream of its own waits for what comes: on the one that sends begin behind, they would wait for it too. The
        clock is read before the counted parts are asked for, or some would have come by then.
        """
        import torch

        stream = torch.cuda.Stream(self._part.device)  # type: ignore[no-untyped-call]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            came = self._room()
            for work in self._receive(came[:SKIPPED]):
                work.wait()  # without a time the stream waits, and this thread does not
            begin.record(stream)
            for work in self._receive(came[SKIPPED:], SKIPPED):
                work.wait()
            end.record(stream)
        _look_until(end.query, until_s)
        return float(begin.elapsed_time(end)) / 1e3


def _wait_for_all(works: "list[Work]", until_s: float) -> None:
    for work in works:
        wait_for(work, timedelta(seconds=max(until_s - time.monotonic(), LOOK_S)))


def _look_until(is_over: Callable[[], bool], until_s: float) -> None:
    while not is_over():
        if time.monotonic() > until_s:
            raise RuntimeError(NO_ANSWER)
        time.sleep(LOOK_S)


LEAST = 0.8  # of what is expected
LEAST_BYTES, USUAL_BYTES, MOST_BYTES = 1 << 20, 4 << 20, 64 << 20
PROBE_S = 0.04  # long enough for a figure within a percent


def bandwidth(context: Context) -> Iterator[Finding]:
    """Send to the next and receive from the one before; the receiver's clock counts."""
    group = context.group
    if group is None or len(group.members) < 2:
        yield skipped("there is one node alone")
        return
    before = group.members[group.members.index(context.node) - 1]
    link, expected = f"{before} to {context.node}", context.workload.link_bytes_per_s
    try:
        rate = _rate(context, group.members, expected)
    except RuntimeError as error:
        yield incomplete(" ".join(str(error).split())[:200], "look at cable and switch port", link)
        return
    got = f"{rate / 1e9:.4g} GB/s"
    if expected and rate < LEAST * expected:
        wanted = f"{LEAST:.0%} of {expected / 1e9:.4g} GB/s"
        yield failed(link, got, wanted, f"look at cable and switch port; {before} may be to blame")
    else:
        yield passed(link, got=got, figure=rate)


def _rate(context: Context, members: tuple[str, ...], expected: float) -> float:
    """Return the bytes a second that come from the node before.

    Raises:
        RuntimeError: If they do not come.
    """
    import torch

    ring, rank = join(context), members.index(context.node)
    is_cuda = context.workload.backend == "nccl" and not context.place.slots
    size = int(min(MOST_BYTES, max(LEAST_BYTES, expected * PROBE_S))) if expected else USUAL_BYTES
    if is_cuda:
        size = MOST_BYTES  # small parts take as long as to ask for them
    home = context.where(context.chosen.gpus[0]) if is_cuda else "cpu"
    part = torch.ones(size // PARTS, dtype=torch.uint8, device=home)
    took_s = Exchange(ring, rank, len(members), part, patience(context)).took_s()
    return (PARTS - SKIPPED) * part.numel() / max(took_s, 1e-6)


BANDWIDTH = Check(
    "link.bw", 1, "bandwidth between neighbours of the ring", 2.0, bandwidth, (Need.SEVERAL,), Stage.GROUP
)


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


RESET = "reset the GPUs; look at fabric manager and bridge"


def nvlink_state(context: Context) -> Iterator[Finding]:
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


def nvlink_errors(context: Context) -> Iterator[Finding]:
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
            yield from _judge_nvlink(device, rose, matters=counts(link))


def _judge_nvlink(device: str, rose: dict[str, tuple[int, int]], *, matters: bool) -> Iterator[Finding]:
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


NVLINK_STATE = Check("nvlink.state", 0, "links between chosen GPUs are up", 0.5, nvlink_state, (Need.NVLINK, Need.GPU))
NVLINK_ERRORS = Check(
    "nvlink.errors", 0, "links between chosen GPUs had no faults since one last looked", 0.5, nvlink_errors,
    (Need.NVLINK, Need.GPU), Stage.LAST,
)  # fmt: skip


CABLE = "replace cable or transceiver"
MOST_RISE = 10  # of a counter that may rise slowly, between two looks


def port_state(context: Context) -> Iterator[Finding]:
    """Look whether ports are up, at the rate that is expected."""
    rates, used = _expected(context)
    for port in context.ports():
        rate = rates.get(port.name, "")
        got = f"{port.state or 'no state'}, {port.physical or 'no physical state'}, {port.rate or 'no rate'}"
        if port.state == "ACTIVE" and port.physical == "LinkUp" and (not rate or port.rate == rate):
            yield passed(port.name, got=got)
        else:
            wanted = f"ACTIVE, LinkUp, {rate or 'any rate'}"
            tell = failed if port.name in used else warned
            yield tell(port.name, got, wanted, "replace the cable; restart its driver")


def port_errors(context: Context) -> Iterator[Finding]:
    """Look whether counters have risen since one last looked."""
    _, used = _expected(context)
    for port in context.ports():
        looked = context.counters.look(port.name, port.counters)
        fatal = {name: looked[name] for name in FATAL if name in looked and looked[name][1] > looked[name][0]}
        many = {name: looked[name] for name in RATED if name in looked and _rise(looked[name]) > MOST_RISE}
        yield _judge_port(port, fatal | many, counts=port.name in used)


def _judge_port(port: Port, rose: dict[str, tuple[int, int]], *, counts: bool) -> Finding:
    if not rose:
        return passed(port.name)
    got = ", ".join(f"{name} rose from {before} to {now}" for name, (before, now) in rose.items())
    wanted = f"{', '.join(FATAL)}: as before; others: at most {MOST_RISE} more"
    if counts:
        return failed(port.name, got, wanted, CABLE)
    return warned(port.name, got, f"{wanted}; the job does not use it", CABLE)


def _rise(looked: tuple[int, int]) -> int:
    return looked[1] - looked[0]


def _expected(context: Context) -> tuple[dict[str, str], set[str]]:
    """Return the expected rate of each port, and which ports the job uses: all, where no file says it."""
    blueprint, ports = context.blueprint(), context.ports()
    if blueprint is None or context.node not in blueprint.nodes:
        return {}, {port.name for port in ports}
    expected = blueprint.nodes[context.node].ports
    used = {name for name, it in expected.items() if not it.gpus or set(it.gpus) & set(context.chosen.gpus)}
    return {name: it.rate for name, it in expected.items()}, used


PORT_STATE = Check("nic.state", 0, "network ports of the job are up", 0.5, port_state, (Need.NIC,))
PORT_ERRORS = Check(
    "nic.errors", 0, "network ports of the job had no faults since one last looked", 0.5, port_errors, (Need.NIC,),
    Stage.LAST,
)  # fmt: skip
