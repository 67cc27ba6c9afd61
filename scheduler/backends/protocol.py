"""The interface of all backends: class `Backend`, and what its methods take and return.

Source: SPEC R8, F1, K6.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, ParamSpec, Protocol, Self, TypeVar

from pydantic import BaseModel

from ...cluster.files.errors import BackendError, error_line
from ...cluster.model.placement import Placement
from ...ring.wire import MemberOffer, NoMemberOffer, RingReport, SeatRequest
from ..model.gpu_index import Layout
from ..model.states import Status

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class CannotHonourError(BackendError):
    """Raised when a backend cannot give exactly the GPUs that were chosen."""


class NoLogError(BackendError):
    """Raised when an attempt has no output of a rank, and none will come."""


class RefusedError(BackendError):
    """Raised when a backend will never start what it was given, such as a program that does not exist."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to run a job."""

    name: str  # ls-<job>-<number>: at most 63 of a-z, 0-9 and -; identifies it at the backend
    job: str
    number: int
    command: tuple[str, ...]  # run once for each GPU, without a shell
    folder: str  # working directory; "" for one of the attempt's own
    environment: Mapping[str, str]
    grace_s: float = 30.0  # between asking a job to stop and killing it
    limit_s: float = float("inf")  # running time after which it is stopped
    image: str = ""  # container image; "" for the backend's own choice
    is_external: bool = False  # its job was submitted at the backend, which holds it until this launch
    seats: int = 0  # of its ring; any further GPUs are of spare members. 0: ranks that stop together
    backups: int = 0  # slow members of its ring whose work backup members, added while it runs, may do
    # GPUs that a rank sees: "node" for those of all ranks on its node, of which its own is number LOCAL_RANK, as under
    # torchrun; "rank" for its own alone, with LOCAL_RANK 0 of LOCAL_WORLD_SIZE 1
    visible_gpus: str = "node"


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU as its node reports it."""

    index: int
    healthy: bool = True
    utilisation: float = 0.0  # 0 to 1
    free_bytes: float = 0.0
    temperature_c: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the backend sees it."""

    name: str
    gpus: tuple[GpuView, ...]
    seen_s: float  # Unix time of its last answer
    slots: bool = False  # its GPUs are slots that only behave like GPUs
    takes_jobs: bool = True  # False where running jobs continue, but none may start


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can promise, and which optional methods of `Backend` it has."""

    exact_gpus: bool  # a job gets exactly the GPU indices that were chosen
    atomic_gang: bool  # all ranks start or none
    enforced: bool  # others cannot take the GPUs of a job
    known_in: str = ""  # only backends with the same value know its attempts; "" where they are known everywhere
    lists_attempts: bool = False  # it has `launched`
    reads_steps: bool = False  # it has `step_lines`
    runs_rings: bool = False  # it has `ring_report`, `retire_members`, `connect_to_ring`, `ring_places`, `add_to_ring`
    moves_coordinators: bool = False  # it has `move_coordinator`, so that a ring survives the loss of each of its nodes
    has_external_jobs: bool = False  # it has `external_jobs` and `discard_external_job`


class StepLines(NamedTuple):
    """What a rank reported of its steps and checkpoints after some offsets, in whole lines (docs/steps.md)."""

    steps: bytes = b""
    saved: bytes = b""
    steps_end: int = 0  # offsets after them
    saved_end: int = 0


class MemberPlace(NamedTuple):
    """A GPU that a ring was given, at its start or later."""

    node: str
    gpu: int  # index on the node
    is_used: bool = True  # a process of the ring runs there, or will
    is_left: bool = False  # no process of it will run there again, and all that did are proven gone
    member: int = -1  # the last one there
    pid: int = 0  # of its process on the node; 0 if none runs


class RingConnection(Protocol):
    """A connection to the coordinator of a ring: which members it lacks, and the replies to that."""

    @property
    def is_open(self) -> bool:
        """Whether the coordinator answers at present."""
        ...

    @property
    def seat_request(self) -> SeatRequest | None:
        """The empty seats that the coordinator last reported; None if not known, or once the ring is over."""
        ...

    def hints(self) -> list[str]:
        """Return possible mistakes in the script, for people, each once."""
        ...

    def send(self, message: MemberOffer | NoMemberOffer) -> bool:
        """Send the coordinator whether a member will come, and return whether it was sent."""
        ...

    def close(self) -> None:
        """Close the connection; the ring continues without it."""
        ...


@dataclass(frozen=True, slots=True)
class ExternalJob:
    """A job that was submitted at the backend, such as by sbatch, which holds it until its GPUs have been chosen."""

    job: str  # its id here, always the same
    number: str  # its id at the backend
    name: str
    owner: str
    nodes: int  # that it needs, with the same number of GPUs on each
    gpus: int  # on all of them
    estimate_s: float | None  # run time; None if its owner gave none
    submitted_s: float  # Unix time
    is_over: bool = False
    is_cancelled: bool = False  # it is over because it was cancelled at the backend


class Backend(ABC):
    """What starts, watches and stops attempts: the contract of every backend, ours and those of plug-ins.

    A backend runs each attempt, one process a GPU, on exactly the GPUs of its placement. The scheduler decides; the
    backend carries out and reports. All methods follow these rules:

    - **An error means "not known".** A `BackendError` never means that an attempt is gone. Each call has a deadline of
      its own, so that a backend which does not answer delays nothing else.
    - **Every call may come again.** The scheduler may crash after any call, or never get the answer. So `launch`,
      `cancel`, `forget`, `retire_members` and `add_to_ring` do nothing the second time, and an attempt never starts
      twice: not after its end, and not after a `cancel` that came before its launch.
    - **Nothing is known by this object alone.** A new object, in another process, finds the attempts of an earlier one.
    - **GPUs are free only by proof.** `is_proven_gone` is true once no process of the attempt lives or can start.
    - **Names identify attempts.** A name is `ls-<job>-<number>`; one that is never launched is `Run.ABSENT`.

    The life of an attempt is `launch`, then `status` or `statuses` until it has ended, `is_proven_gone` until that is
    true, then `forget`; `cancel` may come at any time, and `logs` also after `forget`.

    A subclass has all abstract methods, and a pydantic model `Settings` of its section of the configuration. The other
    methods are optional: their defaults belong to a backend without the feature, and `capabilities` lists the features
    that it has. Register the class under the entry point group `longshore.backends`, and check it with
    `longshore.testing.check_backend`.

    Attributes:
        Settings: Model of its settings in the configuration file.
        capabilities: What it promises, and which optional methods it has; fixed while the object lives.
    """

    Settings: ClassVar[type[BaseModel]]
    capabilities: Capabilities

    @classmethod
    @abstractmethod
    def build(cls, settings: Any, folder: Path, layout: Layout) -> Self:
        """Return the backend of a scheduler.

        Args:
            settings: Of the class `Settings`.
            folder: Of the scheduler; a backend that writes files makes a folder of its own in it.
            layout: Nodes and their GPUs, in cluster-file order.

        Raises:
            LongshoreError: If it cannot be used here.
        """

    @abstractmethod
    def observe(self) -> tuple[NodeView, ...]:
        """Return all its nodes, in cluster-file order.

        Raises:
            BackendError: If one of them cannot be seen.
        """

    @abstractmethod
    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Start an attempt on exactly these GPUs; again, or after its end, this does nothing.

        Raises:
            CannotHonourError: If these GPUs cannot be given.
            RefusedError: If it will never start, as its program does not exist.
            BackendError: If it is not known whether it starts, or another attempt has this name.
        """

    @abstractmethod
    def status(self, name: str) -> Status:
        """Return what is known of an attempt.

        Raises:
            BackendError: If that is no name of an attempt.
        """

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts; override it where one query can answer for all.

        Raises:
            BackendError: If one of these is no name of an attempt.
        """
        return {name: self.status(name) for name in names}

    @abstractmethod
    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or before it starts, and kill it after its grace; return at once.

        Args:
            name: Of the attempt.
            reason: For people.

        Raises:
            BackendError: If the request could not be stored.
        """

    @abstractmethod
    def is_proven_gone(self, name: str) -> bool:
        """Return whether all processes of an attempt are proven gone; False where that is not known."""

    @abstractmethod
    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` of a rank's output from an offset on, and the offset after them.

        Raises:
            NoLogError: If there is no such rank.
            BackendError: If it cannot be read at the moment.
            ValueError: If the offset or the size is negative.
        """

    @abstractmethod
    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left at the backend, except its logs and what keeps it from starting again.

        Raises:
            BackendError: If its processes are not proven gone, or something cannot be deleted.
        """

    def close(self) -> None:  # noqa: B027
        """Release what it holds while a scheduler uses it, such as connections; jobs continue. Errors are logged."""

    def launched(self) -> Mapping[str, tuple[Attempt, Placement]]:
        """Return all attempts that may have processes, now or later: launched, and not forgotten.

        Needs `lists_attempts`. Without it, attempts that are missing from a restored store are not found.

        Returns:
            Each attempt with its GPUs, by name. Where its record is damaged, only the name is known, and no GPUs.

        Raises:
            BackendError: If one of them cannot be read.
        """
        return {}

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        """Return what each rank of an attempt has reported since the last call; nothing of one that has not begun.

        Needs `reads_steps`. Without it, no slow or hung steps are detected, and no checkpoints recorded.

        Args:
            name: Of the attempt.
            placement: Its GPUs.
            before: The last return value, by rank; `StepLines()` for the first time. If much was written since, only
                the last part of it is returned.

        Raises:
            BackendError: If that cannot be read.
        """
        return []

    # Rings (docs/decisions/0015): an attempt with `seats` has one process a GPU as well, but a process that fails stops
    # no other, and the attempt ends when its ring does. Without `runs_rings`, jobs with `failover: switch` are refused.

    def ring_report(self, name: str) -> RingReport | None:
        """Return the state of an attempt's ring, the last known one if its coordinator does not answer.

        Raises:
            BackendError: If that cannot be read.
        """
        return None

    def retire_members(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Remove the members on some GPUs from the ring of an attempt.

        Args:
            name: Of the attempt.
            gpus: Node and index of each.
            reason: For people.

        Returns:
            Whether the ring continues without them, or is done.

        Raises:
            BackendError: If that is not known.
        """
        return False

    def connect_to_ring(self, name: str, wake: Callable[[], object]) -> RingConnection:
        """Return a connection to the coordinator of a ring, which lasts as long as the ring; one at a time.

        Args:
            name: Of the attempt.
            wake: Called from any thread when there is news.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        raise BackendError(f"{name} has no ring")

    def ring_places(self, name: str) -> Sequence[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, by rank; None if that is not known yet.

        Raises:
            BackendError: If that cannot be read.
        """
        return None

    def add_to_ring(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Add a GPU to a ring, which starts a member there; again, this does nothing.

        Args:
            name: Of the attempt.
            rank: Of the process there, the next after those of all GPUs that the ring was given before.
            node: Of the GPU.
            gpu: Index on the node.

        Raises:
            BackendError: If it is not known whether that happens, or the rank is another GPU's.
        """
        raise BackendError(f"{name} has no ring")

    def move_coordinator(self, name: str, silent_s: float) -> str:
        """Let another node run the coordinator of a ring, if that of the present one is lost; again, this does nothing.

        Needs `moves_coordinators`. Without it, a ring is over once the node of its coordinator is.

        Args:
            name: Of the attempt.
            silent_s: For how long the scheduler has had no connection to the coordinator.

        Returns:
            The node; "" if the coordinator stays where it is, or there is no other node.

        Raises:
            BackendError: If that is not known.
        """
        return ""

    def external_jobs(self) -> Sequence[ExternalJob]:
        """Return all jobs that were submitted at the backend itself, also those that are over while it knows them.

        Needs `has_external_jobs`. Until the next call, no other method reports anything newer about them.

        Raises:
            BackendError: If not all are known.
        """
        return ()

    def discard_external_job(self, job: str) -> None:
        """End a job that was submitted at the backend itself, for good.

        Raises:
            BackendError: If it is not known whether it ends.
        """
        raise BackendError(f"no job {job} was submitted at this backend")


def refuse_bad_placement(attempt: Attempt, placement: Placement, nodes: Mapping[str, int]) -> None:
    """Refuse GPUs that do not exist.

    Args:
        attempt: That is to have them.
        placement: The GPUs.
        nodes: GPUs of each node.

    Raises:
        CannotHonourError: If there are no such GPUs, or one is named twice.
    """
    for share in placement:
        if share.node not in nodes:
            raise CannotHonourError(f"no node {share.node!r}; there are {', '.join(nodes)}")
        ascending = list(share.gpus) == sorted(set(share.gpus))
        if not share.gpus or not ascending or not 0 <= share.gpus[0] <= share.gpus[-1] < nodes[share.node]:
            raise CannotHonourError(f"node {share.node} has GPUs 0 to {nodes[share.node] - 1}, not {share.gpus}")
    if not placement or len({share.node for share in placement}) != len(placement):
        raise CannotHonourError(f"{attempt.name}: a placement names each of its nodes once, not {placement}")


def refuse_bad_texts(attempt: Attempt) -> None:
    """Refuse what cannot be passed to a program.

    Raises:
        RefusedError: If another backend holds its job, or the command or an environment variable cannot be passed.
    """
    if attempt.is_external:
        raise RefusedError(f"{attempt.name}: another backend holds the job")
    if not attempt.command:
        raise RefusedError(f"{attempt.name}: its command is empty")
    for text in (*attempt.command, attempt.folder, *attempt.environment):
        if not _may_be_passed(text):
            raise RefusedError(f"{attempt.name}: {text!r} cannot be passed to a program")
    for key, value in attempt.environment.items():
        if not key or "=" in key:
            raise RefusedError(f"{attempt.name}: {key!r} cannot be the name of an environment variable")
        if not _may_be_passed(value):  # which may be a secret
            raise RefusedError(f"{attempt.name}: the value of {key} cannot be passed to a program")


def _may_be_passed(text: str) -> bool:
    """Return whether a text can be an argument or a variable of a program here."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def call_backend(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a method of a backend; an error there must not stop anything else.

    Raises:
        BackendError: If it does not answer, or by mistake raises something else.
    """
    try:
        return call(*args, **kwargs)
    except BackendError:
        raise
    except Exception as error:
        log.error("the backend failed: %s", error_line(error), exc_info=error)
        raise BackendError(f"the backend failed: {type(error).__name__}: {error}") from error
