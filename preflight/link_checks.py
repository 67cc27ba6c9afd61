"""The checks of links: between ring neighbours, to the host, between GPUs, and to the network.

Source: SPEC C3.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from .check import (
    Check,
    CheckFinding,
    CheckStage,
    Compared,
    Need,
    fail_below_median,
    failed,
    incomplete,
    passed,
    skipped,
    warned,
)
from .context import Context
from .groups import NO_ANSWER, follows_on_node, join_check_group, member_timeout, wait_for_work
from .readers import FATAL, RATED, NvLink, Port, pci_domain_and_slot

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

PROBE_PARTS, SKIPPED_PARTS = 10, 2  # the first fifth is not counted: buffers absorb it at once
WAIT_POLL_S = 0.001


class NeighbourExchange:
    """Parts that each member of a ring sends to the next.

    GPUs use NCCL, where a send ends only once the other side receives, and may block everything else until then. If all
    members sent first, all would wait for ever. So every other member receives before it sends.
    """

    def __init__(self, ring: "ProcessGroup", rank: int, size: int, part: "Tensor", at_most: timedelta) -> None:
        self._ring, self._part, self._at_most = ring, part, at_most
        self._after, self._before, self._receives_first = (rank + 1) % size, (rank - 1) % size, rank % 2 == 1

    def exchange_s(self) -> float:
        """Send and receive, and return the time of the received parts, without those that buffers absorb.

        A send that fails is reported by the next member, which does not receive it.

        Raises:
            RuntimeError: If the member before does not answer in time.
        """
        until_s = time.monotonic() + self._at_most.total_seconds()
        half_s = until_s - self._at_most.total_seconds() / 2.0
        if not self._part.is_cuda:
            sent: list[Work] = []
            with suppress(RuntimeError):
                sent = self._begin_send()
            took_s = self._receive_s(until_s)
            with suppress(RuntimeError):
                _wait_for_all(sent, until_s)
        elif self._receives_first:
            try:
                took_s = self._receive_s(half_s)
            finally:
                self._send_and_wait(until_s)
        else:
            self._send_and_wait(half_s)
            took_s = self._receive_s(until_s)
        return took_s

    def _begin_send(self) -> "list[Work]":
        return [self._ring.send([self._part], self._after, tag) for tag in range(PROBE_PARTS)]

    def _send_and_wait(self, until_s: float) -> None:
        with suppress(RuntimeError):
            sent = self._begin_send()
            _poll_until(lambda: all(work.is_completed() for work in sent), until_s)

    def _receive_s(self, until_s: float) -> float:
        if self._part.is_cuda:
            return self._receive_on_gpu_s(until_s)
        awaited = self._begin_receive(self._receive_buffers())
        _wait_for_all(awaited[:SKIPPED_PARTS], until_s)
        began_s = time.perf_counter()
        _wait_for_all(awaited[SKIPPED_PARTS:], until_s)
        return time.perf_counter() - began_s

    def _receive_buffers(self) -> "list[Tensor]":
        return [self._part.clone() for _ in range(PROBE_PARTS)]

    def _begin_receive(self, parts: "list[Tensor]", first_tag: int = 0) -> "list[Work]":
        return [self._ring.recv([part], self._before, tag) for tag, part in enumerate(parts, start=first_tag)]

    def _receive_on_gpu_s(self, until_s: float) -> float:
        """Receive, and return how long that took by the clock of the GPU: a thread polls far too seldom.

        A separate stream waits for the parts: later sends on the same stream would wait for them too. The clock is read
        before the counted parts are requested, or some would have arrived by then.
        """
        import torch

        stream = torch.cuda.Stream(self._part.device)  # type: ignore[no-untyped-call]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            parts = self._receive_buffers()
            for work in self._begin_receive(parts[:SKIPPED_PARTS]):
                work.wait()  # without a timeout the stream waits, and this thread does not
            begin.record(stream)
            for work in self._begin_receive(parts[SKIPPED_PARTS:], SKIPPED_PARTS):
                work.wait()
            end.record(stream)
        _poll_until(end.query, until_s)
        return float(begin.elapsed_time(end)) / 1e3


def _wait_for_all(works: "list[Work]", until_s: float) -> None:
    for work in works:
        wait_for_work(work, timedelta(seconds=max(until_s - time.monotonic(), WAIT_POLL_S)))


def _poll_until(is_over: Callable[[], bool], until_s: float) -> None:
    while not is_over():
        if time.monotonic() > until_s:
            raise RuntimeError(NO_ANSWER)
        time.sleep(WAIT_POLL_S)


MIN_LINK_SHARE = 0.8  # of what is expected
MIN_PROBE_BYTES, DEFAULT_PROBE_BYTES, MAX_PROBE_BYTES = 1 << 20, 4 << 20, 64 << 20
PROBE_S = 0.04  # long enough for a figure within a percent


def measure_bandwidth(context: Context) -> Iterator[CheckFinding]:
    """Send to the next node and receive from the previous one; the receiver's clock counts."""
    group = context.group
    if group is None or len(group.members) < 2:
        yield skipped("there is only one node")
        return
    before = group.members[group.members.index(context.node) - 1]
    link, expected = f"{before} to {context.node}", context.workload.link_bytes_per_s
    try:
        is_promised = not follows_on_node(context)  # before the group: the store may be gone when all have sent
        rate = _receive_bytes_per_s(context, group.members, expected)
    except RuntimeError as error:
        yield incomplete(" ".join(str(error).split())[:200], "check cable and switch port", link)
        return
    got = f"{rate / 1e9:.4g} GB/s"
    if expected and is_promised and rate < MIN_LINK_SHARE * expected:
        wanted = f"{MIN_LINK_SHARE:.0%} of {expected / 1e9:.4g} GB/s"
        yield failed(link, got, wanted, f"check cable and switch port; {before} may be the cause")
    else:
        yield passed(link, got=got, figure=rate)


def _receive_bytes_per_s(context: Context, members: tuple[str, ...], expected: float) -> float:
    """Return the bytes per second from the previous node.

    Raises:
        RuntimeError: If they do not arrive.
    """
    import torch

    ring, rank = join_check_group(context), members.index(context.node)
    is_cuda = context.workload.backend == "nccl" and not context.setup.slots
    size = int(min(MAX_PROBE_BYTES, max(MIN_PROBE_BYTES, expected * PROBE_S))) if expected else DEFAULT_PROBE_BYTES
    if is_cuda:
        size = MAX_PROBE_BYTES  # small parts take as long as their requests
    home = context.torch_device(context.chosen.gpus[0]) if is_cuda else "cpu"
    part = torch.ones(size // PROBE_PARTS, dtype=torch.uint8, device=home)
    took_s = NeighbourExchange(ring, rank, len(members), part, member_timeout(context)).exchange_s()
    return (PROBE_PARTS - SKIPPED_PARTS) * part.numel() / max(took_s, 1e-6)


BANDWIDTH_CHECK = Check(
    "link.bw", 1, "bandwidth between neighbours of the ring", 2.0, measure_bandwidth, (Need.SEVERAL,), CheckStage.GROUP
)


COPY_BYTES = 32 << 20
RESEAT = "reseat the card; replace the riser"


def check_pcie_width(context: Context) -> Iterator[CheckFinding]:
    """Check that the link has its full width. Its generation falls when it is idle, so it is not checked."""
    for gpu, reader in context.gpus_with_reader():
        link = reader.pcie(gpu)
        device = f"gpu {gpu}"
        if link is None:
            yield skipped("the GPU does not report it", device)
        elif link.width < link.max_width:
            yield failed(device, f"width {link.width}, generation {link.generation}", f"width {link.max_width}", RESEAT)
        else:
            yield passed(device, got=f"width {link.width}")


def check_copies(context: Context) -> Iterator[CheckFinding]:
    """Copy bytes to each GPU and back, and measure the bandwidth of the link, without the host's own copies."""
    import time

    import torch

    sent = torch.arange(COPY_BYTES // 4, dtype=torch.int32).pin_memory()
    received = torch.empty_like(sent).pin_memory()
    for gpu in context.chosen.gpus:
        where, device = context.torch_device(gpu), f"gpu {gpu}"
        there = torch.zeros_like(sent, device=where)
        received.zero_()  # bytes from the previous GPU would hide a copy that does nothing
        torch.cuda.synchronize(where)
        begin_s = time.perf_counter()
        there.copy_(sent, non_blocking=True)
        received.copy_(there, non_blocking=True)
        torch.cuda.synchronize(where)
        took_s = time.perf_counter() - begin_s
        wrong = int((received != sent).sum())
        if wrong:
            first = int((received != sent).nonzero()[0])
            yield failed(device, f"{wrong} of {len(sent)} words differ, the first at {first}", "none", RESEAT)
        else:
            rate = 2 * COPY_BYTES / took_s
            yield passed(device, figure=rate, got=f"{rate / 1e9:.3g} GB/s")


def fail_slow_copies(findings: Compared) -> Compared:
    """Return failures of nodes whose copies are below half the median bandwidth."""
    return fail_below_median(
        findings, 0.5, lambda median: f"half of {median / 1e9:.3g} GB/s, the median", f"pcie.link; {RESEAT}"
    )


PCIE_CHECK = Check(
    "pcie.link", 0, "the link to the host has its full width", 0.5, check_pcie_width, (Need.GPU, Need.HOST)
)
COPY_CHECK = Check(
    "copy.h2d", 1, "bytes return unchanged from the GPU", 1.0, check_copies, (Need.GPU, Need.HOST),
    compare=fail_slow_copies,
)  # fmt: skip


FIRST_READING = "its counters were not read before, so that they cannot have risen"
RESET_GPUS = "reset the GPUs; check fabric manager and bridge"


def check_nvlink_state(context: Context) -> Iterator[CheckFinding]:
    """Check that links are up, and read their counters before the traffic of the round."""
    for gpu, links, counts in _links_of_chosen_gpus(context):
        if links is None:
            yield skipped("the GPU has no links to others, or does not report them", f"gpu {gpu}")
            continue
        for link in links:
            context.begin_counters(_link_name(gpu, link), _link_counters(link))
            device, far = _link_name(gpu, link), link.remote_pci or "unknown"
            if link.active:
                yield passed(device)
            elif counts(link):
                yield failed(device, f"down, to {far}", "up", RESET_GPUS)
            else:
                yield warned(device, f"down, to {far}", "up; no chosen GPU is behind it", RESET_GPUS)


def check_nvlink_errors(context: Context) -> Iterator[CheckFinding]:
    """Check whether a link recovered or replayed since the last check."""
    for gpu, links, counts in _links_of_chosen_gpus(context):
        for link in links or ():
            device, counters = _link_name(gpu, link), _link_counters(link)
            if not counters:
                yield skipped("the GPU does not count faults of this link", device)
                continue
            changes = context.update_counters(device, counters)
            if not changes:
                yield skipped(FIRST_READING, device)
                continue
            rose = {name: (before, now) for name, (before, now) in changes.items() if now > before}
            yield from _judge_nvlink(device, rose, matters=counts(link))


def _link_name(gpu: int, link: NvLink) -> str:
    return f"gpu {gpu} link {link.link}"


def _link_counters(link: NvLink) -> dict[str, int]:
    """Return the counters of a link that it has."""
    values = {"recoveries": link.recoveries, "replays": link.replays, "crc errors": link.crc_errors}
    return {name: value for name, value in values.items() if value is not None}


def _judge_nvlink(device: str, rose: dict[str, tuple[int, int]], *, matters: bool) -> Iterator[CheckFinding]:
    got = ", ".join(f"{name} rose from {before} to {now}" for name, (before, now) in rose.items())
    if not rose:
        yield passed(device)
    elif matters and "recoveries" in rose:
        yield failed(device, got, "no recovery", RESET_GPUS)
    else:
        yield warned(device, got, "none", RESET_GPUS)


def _links_of_chosen_gpus(context: Context) -> Iterator[tuple[int, Sequence[NvLink] | None, Callable[[NvLink], bool]]]:
    """Yield each chosen GPU, its links, and a function that returns whether a link counts.

    A link counts if its other end is a chosen GPU, a switch, or unknown.
    """
    reader = context.gpu_reader
    if reader is None:
        return
    pci = {gpu.index: pci_domain_and_slot(gpu.pci) for gpu in reader.gpus()}
    chosen = {pci[index] for index in context.chosen.gpus if index in pci}
    others = set(pci.values()) - chosen
    for gpu in context.chosen.gpus:
        yield gpu, reader.nvlinks(gpu), lambda link: pci_domain_and_slot(link.remote_pci) not in others


NVLINK_STATE_CHECK = Check(
    "nvlink.state", 0, "links between chosen GPUs are up", 0.5, check_nvlink_state, (Need.NVLINK, Need.GPU)
)
NVLINK_ERRORS_CHECK = Check(
    "nvlink.errors", 0, "links between chosen GPUs had no faults since the last check", 0.5, check_nvlink_errors,
    (Need.NVLINK, Need.GPU), CheckStage.LAST,
)  # fmt: skip


REPLACE_LINK = "replace cable or transceiver"
MAX_COUNTER_RISE = 10  # of a counter that may rise slowly, between two checks


def check_port_state(context: Context) -> Iterator[CheckFinding]:
    """Check that ports are up, at the expected rate, and read their counters before the traffic of the round."""
    rates, used = _expected_rates_and_used_ports(context)
    for port in context.ports():
        context.begin_counters(port.name, port.counters)
        rate = rates.get(port.name, "")
        got = f"{port.state or 'no state'}, {port.physical or 'no physical state'}, {port.rate or 'no rate'}"
        if port.state == "ACTIVE" and port.physical == "LinkUp" and (not rate or port.rate == rate):
            yield passed(port.name, got=got)
        else:
            wanted = f"ACTIVE, LinkUp, {rate or 'any rate'}"
            report = failed if port.name in used else warned
            yield report(port.name, got, wanted, "replace the cable; restart its driver")


def check_port_errors(context: Context) -> Iterator[CheckFinding]:
    """Check whether error counters have risen since the last check."""
    _, used = _expected_rates_and_used_ports(context)
    for port in context.ports():
        changes = context.update_counters(port.name, port.counters)
        if not changes:
            yield skipped(FIRST_READING, port.name)
            continue
        fatal = {name: changes[name] for name in FATAL if name in changes and changes[name][1] > changes[name][0]}
        rated = {name: changes[name] for name in RATED if name in changes}
        many = {name: (before, now) for name, (before, now) in rated.items() if now - before > MAX_COUNTER_RISE}
        yield _judge_port(port, fatal | many, counts=port.name in used)


def _judge_port(port: Port, rose: dict[str, tuple[int, int]], *, counts: bool) -> CheckFinding:
    if not rose:
        return passed(port.name)
    got = ", ".join(f"{name} rose from {before} to {now}" for name, (before, now) in rose.items())
    wanted = f"{', '.join(FATAL)}: as before; others: at most {MAX_COUNTER_RISE} more"
    if counts:
        return failed(port.name, got, wanted, REPLACE_LINK)
    return warned(port.name, got, f"{wanted}; the job does not use it", REPLACE_LINK)


def _expected_rates_and_used_ports(context: Context) -> tuple[dict[str, str], set[str]]:
    """Return the expected rate of each port, and the ports that the job uses: all, without a wiring file."""
    blueprint, ports = context.blueprint(), context.ports()
    if blueprint is None or context.node not in blueprint.nodes:
        return {}, {port.name for port in ports}
    expected = blueprint.nodes[context.node].ports
    used = {name for name, plan in expected.items() if not plan.gpus or set(plan.gpus) & set(context.chosen.gpus)}
    return {name: plan.rate for name, plan in expected.items()}, used


PORT_STATE_CHECK = Check("nic.state", 0, "network ports of the job are up", 0.5, check_port_state, (Need.NIC,))
PORT_ERRORS_CHECK = Check(
    "nic.errors", 0, "network ports of the job had no faults since the last check", 0.5, check_port_errors, (Need.NIC,),
    CheckStage.LAST,
)  # fmt: skip
