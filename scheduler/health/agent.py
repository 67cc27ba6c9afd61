"""The agent of a node: tells the scheduler every few seconds that the node lives, and how its GPUs are.

Source: SPEC F1, C9.
"""

import logging
import os
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...cluster.files.errors import BackendError, InputError
from ..client import Client
from ..files.processes import boot_id, shows_this_process
from .gpus import gpu_reports
from .links.prober import Prober
from .monitoring.checking import Checking
from .monitoring.guarding import Lease, attempts_here, kill_attempts, since_start_s, start_guard, write_lease
from .reports import NodeReport
from .witnessing.door import Door
from .witnessing.knocking import AskedRounds

log = logging.getLogger(__name__)


class Fencing:
    """Lets attempts live on this node for as long as the scheduler answers; a guard beside it kills them else.

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
        self._file, self._boot, self._token = file, boot_id(), 0
        self._until_s = since_start_s()  # no lease yet: what runs here lives on only if the first report is answered
        self._guard: subprocess.Popen[bytes] | None = None

    def attempts(self) -> tuple[str, ...]:
        """Return the attempts that have processes here."""
        return tuple(sorted(attempts_here()))

    def take(self, answer: dict[str, Any] | None, sent_s: float) -> None:
        """Take what a report was answered.

        Args:
            answer: None if it was not answered.
            sent_s: When the report was sent, as `since_start_s` has it.
        """
        token = int(answer["token"]) if answer else 0
        if answer and answer["lease_s"] is not None and token >= self._token:
            self._token, self._until_s = token, sent_s + float(answer["lease_s"])
            if answer["kill"]:
                kill_attempts(frozenset(answer["kill"]))
        self._renew()

    def _renew(self) -> None:
        """Write down the lease, and see to it that somebody guards it."""
        try:
            if self._guard is None or self._guard.poll() is not None:
                write_lease(self._file, Lease(self._boot, self._until_s, self._token, 0))
                self._guard = start_guard(self._file)
            write_lease(self._file, Lease(self._boot, self._until_s, self._token, self._guard.pid))
        except OSError as error:
            log.error("the lease cannot be renewed, and runs out: %s", error)
        if since_start_s() >= self._until_s and (killed := kill_attempts()):
            log.error("no lease of the scheduler is left: %d processes of jobs were killed", killed)


def open_door(node: str, port: int) -> Door:
    """Answer whoever asks whether the agent of a node lives.

    Args:
        node: Of the agent.
        port: To listen at, 0 for any that is free.

    Raises:
        InputError: If nobody can listen there.
    """
    try:
        return Door(node, known_boot_id(), port)
    except OSError as error:
        fix = "choose another --port, or -1 for none"
        raise InputError(f"the agent cannot listen at port {port}: {error.strerror}", fix) from error


def known_boot_id() -> str:
    """Return what names the time since the machine's start, "" where that is not known."""
    try:
        return boot_id()
    except OSError:  # another system than Linux
        return ""


def report_now(
    fencing: Fencing | None = None, prober: Prober | None = None, *, checks: bool = False, door: int = 0
) -> NodeReport:
    """Return what there is to tell of this node."""
    attempts, probes = None if fencing is None else fencing.attempts(), None if prober is None else prober.place
    return NodeReport(
        gpus=gpu_reports(), boot_id=known_boot_id(), version=version("longshore"), attempts=attempts, checks=checks,
        door=door, probes=probes,
    )  # fmt: skip


def report_for_ever(
    client: Client, node: str, every_s: float, fencing: Fencing | None = None, checking: Checking | None = None,
    door: Door | None = None, prober: Prober | None = None,
) -> None:  # fmt: skip
    """Report until the process is stopped; a scheduler that does not answer is waited for.

    Args:
        client: Of the scheduler.
        node: Name of this node.
        every_s: Between two reports.
        fencing: Ends what runs here when the scheduler does not answer; None to let it run on.
        checking: Runs the checks that the scheduler asks for; None to run none.
        door: At which this agent answers; None to answer nobody, and to knock nowhere.
        prober: Probes the links that the scheduler asks for; None to probe none.

    Raises:
        InputError: If the scheduler refuses the reports, as it knows no such node or the token is not an operator's.
    """
    reached, knocking = True, AskedRounds(client, node)
    while True:
        began_s, sent_s = time.monotonic(), since_start_s()
        answer = None
        try:
            told = report_now(fencing, prober, checks=checking is not None, door=0 if door is None else door.port)
            answer = client.report(node, told.model_dump(mode="json", exclude_none=True))
        except BackendError as error:
            if reached:
                log.warning("%s; reports go on", error)
            reached = False
        else:
            if not reached:
                log.warning("the scheduler answers again")
            reached = True
        if fencing is not None:
            fencing.take(answer, sent_s)
        if checking is not None and answer is not None:
            checking.take(answer.get("checks", ()))
        if answer is not None:
            knocking.take(answer.get("knocks", ()))
        time.sleep(max(0.0, every_s - (time.monotonic() - began_s)))
