"""The agent of a node: reads GPUs, runs checks, and reports to the scheduler.

Source: SPEC F1, C9, C8.
"""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...cluster.files.errors import BackendError, InputError, LongshoreError, error_line
from ...cluster.files.processes import boot_id, shows_this_process
from ...preflight.context import NodeSetup
from ...preflight.readers import GpuLostError, open_nvml
from ...preflight.rounds import check_node
from ..client import Client
from .evidence import AgentPort, GpuReport, NodeReport, PortProbe, PortState, ProbeRounds
from .guarding import (
    Lease,
    is_lease_valid,
    kill_attempts,
    processes_by_attempt,
    read_lease,
    since_start_s,
    start_guard,
    write_lease,
)
from .link_probes import Prober

log = logging.getLogger(__name__)


def _make_ordered_probes(client: Client, node: str, rounds: ProbeRounds, orders: Iterable[Mapping[str, Any]]) -> None:
    """Make the ordered probes, unless a round is under way; an order comes again until its result is reported."""
    probes = {
        str(order["id"]): PortProbe(str(order["node"]), str(order["address"]), int(order["port"])) for order in orders
    }

    def report(results: Sequence[PortState]) -> None:
        try:
            client.report_port_probes(node, dict(zip(probes, map(str, results), strict=True)))
        except LongshoreError as error:
            log.warning("results of probes of other agents could not be reported: %s", error)

    if probes and not rounds.is_under_way:
        rounds.begin(tuple(probes.values()), report)


# A failure is not cached: the driver may start after the agent.
_open_reader = cache(open_nvml)


@cache
def _warn_of_no_gpus(cause: str) -> None:
    """Log once for each cause."""
    log.warning("no GPU is reported: %s", cause)


def gpu_reports() -> tuple[GpuReport, ...]:
    """Return all GPUs of this machine in the order of their PCI addresses; none on a machine without a driver.

    Raises:
        BackendError: If the driver does not answer any more.
    """
    try:
        reader = _open_reader()
    except BackendError as error:
        _warn_of_no_gpus(str(error))
        return ()
    try:
        return tuple(GpuReport(**asdict(state)) for state in reader.states())
    except GpuLostError as error:
        raise BackendError(f"the driver of the GPUs does not answer: {error}; restart the agent") from error


MAX_EVIDENCE = 2000  # characters
_CONTROL_TO_SPACE = dict.fromkeys((*range(32), 127), " ")


class Checking:
    """Runs one order after the other, in a thread of its own: reports never wait for checks.

    Args:
        client: Of the scheduler.
        place: This node; whether it has slots is in the orders.
    """

    def __init__(self, client: Client, place: NodeSetup) -> None:
        self._client, self._place = client, place
        self._running: threading.Thread | None = None

    def begin_unless_busy(self, orders: Iterable[Mapping[str, Any]]) -> None:
        """Begin with the first order, unless one is under way; an order comes again until its outcome is reported."""
        first = next(iter(orders), None)
        if first is None or (self._running is not None and self._running.is_alive()):
            return
        self._running = threading.Thread(target=self._check_and_report, args=(first,), name="checks", daemon=True)
        self._running.start()

    def _check_and_report(self, order: Mapping[str, Any]) -> None:
        try:
            place = replace(self._place, slots=bool(order["slots"]))
            cleared_s = {int(gpu): float(at_s) for gpu, at_s in order["cleared_s"].items()}
            passed, evidence = check_node(place, tuple(order["gpus"]), cleared_s, int(order["level"]))
        except Exception as error:  # a check may fail in any way
            passed, evidence = False, f"the checks themselves failed: {error_line(error)}"
        line = evidence.translate(_CONTROL_TO_SPACE)[:MAX_EVIDENCE]
        log.info("checks of %s: %s", self._place.node, line)
        try:
            self._client.report_check_outcome(self._place.node, str(order["id"]), passed=passed, evidence=line)
        except LongshoreError as error:
            log.warning("the outcome of the checks could not be reported, and they are run again: %s", error)


class Fencing:
    """Lets attempts live on this node while the scheduler answers; else a guard process kills them.

    Args:
        file: Of the lease.

    Raises:
        InputError: If this process cannot see and kill the processes of all users.
        OSError: If the guard cannot be started.
    """

    def __init__(self, file: Path) -> None:
        if os.geteuid() != 0:
            raise InputError("only root sees and kills the processes of all jobs", "run the agent as root")
        if not shows_this_process():
            raise InputError("/proc does not show the processes of this node", "mount it before the agent starts")
        self._file, self._boot = file, boot_id()
        # A lease that the agent before this one got holds on. Without one, what runs here survives only if the first
        # report is answered.
        self._until_s, self._token = since_start_s(), 0
        last = read_lease(file)
        if last is not None and is_lease_valid(last, self._boot, self._until_s):
            self._until_s, self._token = last.until_s, last.token
        self._guard: subprocess.Popen[bytes] | None = None

    def attempts_here(self) -> tuple[str, ...]:
        """Return the attempts that have processes here."""
        return tuple(sorted(processes_by_attempt()))

    def apply_answer(self, answer: dict[str, Any] | None, sent_s: float) -> None:
        """Take the answer to a report.

        Args:
            answer: None if it was not answered.
            sent_s: When the report was sent, as `since_start_s` has it.
        """
        token = int(answer["token"]) if answer else 0
        if answer and answer["lease_s"] is not None:
            if token >= self._token:
                self._token, self._until_s = token, sent_s + float(answer["lease_s"])
                if answer["kill"]:
                    kill_attempts(frozenset(answer["kill"]))
            else:
                log.warning("a scheduler with token %d grants no lease here: one with %d did", token, self._token)
        self._renew_or_kill()

    def _renew_or_kill(self) -> None:
        """Write the lease, and keep its guard running."""
        try:
            if self._guard is None or self._guard.poll() is not None:
                write_lease(self._file, Lease(self._boot, self._until_s, self._token, 0))
                self._guard = start_guard(self._file)
            write_lease(self._file, Lease(self._boot, self._until_s, self._token, self._guard.pid))
        except OSError as error:
            log.error("the lease cannot be renewed, and runs out: %s", error)
        if since_start_s() >= self._until_s:
            if killed := kill_attempts():
                log.error("no lease of the scheduler is left: %d processes of jobs were killed", killed)
            # Nothing lives here that a scheduler of an older token could keep alive, so any may grant the next lease.
            # The token of a store that was restored is lower if the clock was set back as well.
            self._token = 0


def open_agent_port(node: str, port: int) -> AgentPort:
    """Open the port where the agent of a node answers probes.

    Args:
        node: Of the agent.
        port: To listen at, 0 for any that is free.

    Raises:
        InputError: If it cannot listen there.
    """
    try:
        return AgentPort(node, known_boot_id(), port)
    except OSError as error:
        fix = "choose another --port, or -1 for none"
        raise InputError(f"the agent cannot listen at port {port}: {error.strerror}", fix) from error


def known_boot_id() -> str:
    """Return the machine's boot id, "" where that is not known."""
    try:
        return boot_id()
    except OSError:  # another system than Linux
        return ""


def read_report(
    fencing: Fencing | None = None, prober: Prober | None = None, *, checks: bool = False, agent_port: int = 0
) -> NodeReport:
    """Return the report of this node."""
    attempts, probes = None if fencing is None else fencing.attempts_here(), None if prober is None else prober.place
    return NodeReport(
        gpus=gpu_reports(), boot_id=known_boot_id(), version=version("longshore"), attempts=attempts, checks=checks,
        agent_port=agent_port, probes=probes,
    )  # fmt: skip


def report_forever(
    client: Client, node: str, every_s: float, fencing: Fencing | None = None, checking: Checking | None = None,
    agent_port: AgentPort | None = None, prober: Prober | None = None,
) -> None:  # fmt: skip
    """Report until the process is stopped, also while the scheduler does not answer.

    Args:
        client: Of the scheduler.
        node: Name of this node.
        every_s: Between two reports.
        fencing: Ends what runs here when the scheduler does not answer; None to let it continue.
        checking: Runs the checks that the scheduler requests; None to run none.
        agent_port: Where this agent answers probes; None for none, and to probe no other agents.
        prober: Probes the links that the scheduler requests; None to probe none.

    Raises:
        InputError: If the scheduler refuses the reports, as it knows no such node or the token is not an operator's.
    """
    reached, rounds = True, ProbeRounds()
    while True:
        began_s, sent_s = time.monotonic(), since_start_s()
        answer = None
        try:
            report = read_report(
                fencing, prober, checks=checking is not None, agent_port=0 if agent_port is None else agent_port.port
            )
            answer = client.report(node, report.model_dump(mode="json", exclude_none=True))
        except BackendError as error:
            if reached:
                log.warning("%s; reports continue", error)
            reached = False
        else:
            if not reached:
                log.warning("the scheduler answers again")
            reached = True
        if fencing is not None:
            fencing.apply_answer(answer, sent_s)
        if checking is not None and answer is not None:
            checking.begin_unless_busy(answer.get("checks", ()))
        if answer is not None:
            _make_ordered_probes(client, node, rounds, answer.get("port_probes", ()))
        time.sleep(max(0.0, every_s - (time.monotonic() - began_s)))
