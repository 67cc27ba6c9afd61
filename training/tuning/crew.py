"""Who runs trials: processes on this machine, or tasks of a Ray cluster."""

import multiprocessing
import os
import re
import signal
import socket
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from types import FrameType
from typing import Any, Protocol

from ...cluster.files.errors import BackendError, InputError
from .trial import Ended, Work, run_trial

ANSWERS_S = 10.0  # in which a Ray that is there takes a connection


class Crew(Protocol):
    """Runs trials, each apart from the others."""

    def begin(self, work: Work) -> Any:
        """Begin a trial, and return what it is known by."""
        ...

    def ended(self, begun: Collection[Any]) -> list[tuple[Any, Ended]]:
        """Wait until one of some trials has ended at least, and return those that have."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


def _ignore_interrupts() -> None:
    """Leave Ctrl-C and SIGTERM, which may come to all processes, to the one that started this while it lives."""
    starter = os.getppid()

    def end_if_left(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getppid() != starter:
            raise SystemExit(128 + number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_if_left)


class Processes:
    """Runs trials in processes on this machine.

    Args:
        jobs: At once.
    """

    def __init__(self, jobs: int) -> None:
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupts
        )

    def begin(self, work: Work) -> Any:
        """Begin a trial, and return what it is known by."""
        return self._pool.submit(run_trial, work)

    def ended(self, begun: Collection[Any]) -> list[tuple[Any, Ended]]:
        """Wait until one of some trials has ended at least, and return those that have."""
        try:
            return [(one, one.result()) for one in wait_for(begun, return_when=FIRST_COMPLETED).done]
        except BrokenProcessPool as error:
            raise BackendError("the process of a trial was killed; it may lack memory: take fewer --jobs") from error

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


def _check_answers(address: str) -> None:
    """Refuse a HOST:PORT at which nobody listens: Ray itself would try for minutes.

    Raises:
        BackendError: If it is one.
    """
    found = re.fullmatch(r"(?:ray://)?([^:/]+):(\d{1,5})", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), ANSWERS_S).close()
    except OSError as error:
        raise BackendError(f"no Ray answers at {address}: {error.strerror or error}") from error


class RayTasks:
    """Runs trials as tasks of a Ray cluster, each on one core.

    Args:
        address: Of the cluster, as `ray.init` takes it: HOST:PORT, or ray://HOST:PORT from outside.

    Raises:
        InputError: If Ray is not installed.
        BackendError: If nothing answers there.
    """

    def __init__(self, address: str) -> None:
        if find_spec("ray") is None:
            raise InputError("Ray is not installed", "pip install 'longshore[ray]'", field="--ray")
        _check_answers(address)
        import ray

        self._ray: Any = ray
        try:
            ray.init(address, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BackendError(f"no Ray answers at {address}: {str(error).strip().splitlines()[0]}") from error
        self._run: Any = ray.remote(num_cpus=1)(run_trial)

    def begin(self, work: Work) -> Any:
        """Begin a trial, and return what it is known by."""
        return self._run.remote(work)

    def ended(self, begun: Collection[Any]) -> list[tuple[Any, Ended]]:
        """Wait until one of some trials has ended at least, and return those that have.

        Raises:
            BackendError: If Ray has lost one.
        """
        done, _ = self._ray.wait(list(begun), num_returns=1)
        try:
            return [(one, self._ray.get(one)) for one in done]
        except self._ray.exceptions.RayError as error:
            raise BackendError(f"Ray has lost a trial: {str(error).strip().splitlines()[0]}") from error

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()
