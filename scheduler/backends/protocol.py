"""The one interface of all backends: what each is asked, and what each refuses.

Source: SPEC R8, F1, K6; every call has a deadline of its own, and an exception means that the answer is not known,
never that a job is gone.
"""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from ...cluster.files.errors import BackendError, words_of
from ...cluster.model.placement import Placement, Share
from ...ring.wire import Coming, NoneComing, Report, Want
from ..model.states import Status


class CannotHonourError(BackendError):
    """Raised when a backend cannot give exactly the GPUs that were chosen."""


class NoLogError(BackendError):
    """Raised when an attempt has no output of a rank, and none will come."""


class RefusedError(BackendError):
    """Raised when a backend will never start what it was given, such as a program that is not there."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to run a job."""

    name: str  # ls-<job>-<number>: at most 63 of a-z, 0-9 and -; what a backend knows it by
    job: str
    number: int
    command: tuple[str, ...]  # run once for each GPU, without a shell
    folder: str  # working directory; "" for one of the attempt's own
    environment: Mapping[str, str]
    grace_s: float = 30.0  # between asking a job to stop and killing it
    limit_s: float = float("inf")  # running time after which it is stopped
    image: str = ""  # container image; "" for the backend's own choice
    is_held: bool = False  # the backend has it already, and holds it until it is launched
    seats: int = 0  # of its ring; more GPUs than that are of members that wait. 0: ranks that stop together
    backups: int = 0  # slow members of its ring in whose place others may compute, which are added while it runs
    # GPUs that a rank sees: "node" for those of all ranks on its node, of which its own is number LOCAL_RANK, as under
    # torchrun; "rank" for its own alone, with LOCAL_RANK 0 of LOCAL_WORLD_SIZE 1
    visible_gpus: str = "node"


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU as its node tells."""

    index: int
    healthy: bool = True
    utilisation: float = 0.0  # 0 to 1
    free_bytes: float = 0.0
    temperature_c: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as it answers."""

    name: str
    gpus: tuple[GpuView, ...]
    seen_s: float  # Unix time of its last answer
    slots: bool = False  # its GPUs are slots that only behave like GPUs
    takes_jobs: bool = True  # False where those that run there go on, but none may start


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can promise."""

    exact_gpus: bool  # the indices that were chosen are what a job gets
    atomic_gang: bool  # all ranks start or none
    enforced: bool  # others cannot take the GPUs of a job
    known_in: str = ""  # outside of it nobody knows its attempts; "" where they are known wherever one asks


@runtime_checkable
class Closes(Protocol):
    """What a backend may do as well: let go of what it holds while a scheduler uses it."""

    def close(self) -> None:
        """Look at nothing more; jobs run on. What goes wrong is logged, and holds nobody up."""
        ...


class StepLines(NamedTuple):
    """What a rank told of its steps and checkpoints behind some offsets: whole lines, as docs/steps.md has them."""

    steps: bytes = b""
    saved: bytes = b""
    steps_end: int = 0  # offsets behind them
    saved_end: int = 0


@runtime_checkable
class WritesSteps(Protocol):
    """What a backend may do as well: let jobs tell of their steps and checkpoints."""

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        """Return what each rank of an attempt has told since the last time; nothing of one that has not begun.

        Args:
            name: Of the attempt.
            placement: Its GPUs.
            before: What it returned then, by rank; `StepLines()` for the first time. If much has come since, only the
                last part of it is returned.

        Raises:
            BackendError: If that cannot be seen.
        """
        ...


class MemberPlace(NamedTuple):
    """A GPU that a ring was given, at its start or later."""

    node: str
    gpu: int  # index on the node
    is_used: bool = True  # a process of the ring is there, or will be
    is_left: bool = False  # no process of it will be there any more, and all that were are proven gone
    member: int = -1  # the last one there
    pid: int = 0  # of its process on the node; 0 if none runs


class Desk(Protocol):
    """Where the members come from that a ring lacks: what its coordinator says, and what it is told."""

    @property
    def want(self) -> Want | None:
        """What the coordinator said last of empty seats; None if nobody knows, or if the ring is over."""
        ...

    def hints(self) -> list[str]:
        """Return what may be wrong with the script, for people, as far as that is new."""
        ...

    def say(self, message: Coming | NoneComing) -> bool:
        """Tell the coordinator whether somebody comes, and return whether it could be told."""
        ...

    def close(self) -> None:
        """Let the ring do without."""
        ...


@runtime_checkable
class Seats(Protocol):
    """What a backend may do as well: let the ring of an attempt go on without members that fail.

    Of an attempt with `seats` one process runs for each GPU, as ever. But a process that fails stops no other: the
    attempt ends when its ring does (docs/decisions/0015).
    """

    def ring(self, name: str) -> Report | None:
        """Return how the ring of an attempt stands, or stood last if nobody answers; None of one that has none.

        Raises:
            BackendError: If that cannot be seen.
        """
        ...

    def retire(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Let the members on some GPUs leave the ring of an attempt; asked again, it does nothing more.

        Args:
            name: Of the attempt.
            gpus: Node and index of each.
            reason: For people.

        Returns:
            Whether the ring goes on without them, or is done.

        Raises:
            BackendError: If that cannot be seen.
        """
        ...

    def desk(self, name: str, wake: Callable[[], object]) -> Desk:
        """Return a desk for the ring of an attempt; there is one at a time, and it hears as long as the ring lives.

        Args:
            name: Of the attempt.
            wake: Called from any thread when there is something new to look at.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        ...

    def places(self, name: str) -> Sequence[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, by rank; None if that cannot be told yet.

        Raises:
            BackendError: If it cannot be seen.
        """
        ...

    def add(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Let a ring have one GPU more, on which it starts a member; again, it does nothing.

        Args:
            name: Of the attempt.
            rank: Of the process there, by which it is known from then on: behind all that the ring was given before.
            node: Of the GPU.
            gpu: Index on the node.

        Raises:
            BackendError: If it is not known whether that comes to be, or the rank is another GPU's.
        """
        ...


@runtime_checkable
class Lists(Protocol):
    """What a backend may do as well: tell which attempts it has that nobody has let it forget."""

    def remembered(self) -> Mapping[str, tuple[Attempt, Placement]]:
        """Return all attempts that may have processes, now or later, with what was to be run and their GPUs, by name.

        Of one without GPUs nobody knows more than its name.

        Raises:
            BackendError: If they cannot all be told.
        """
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """A job that came by the backend's own way, and is held there until its GPUs have been chosen."""

    job: str  # its id here, always the same
    number: str  # that its owner knows it by
    name: str
    owner: str
    nodes: int  # that it needs, with the same number of GPUs on each
    gpus: int  # on all of them
    estimate_s: float | None  # run time; None if its owner did not say
    submitted_s: float  # Unix time
    is_over: bool = False
    is_cancelled: bool = False  # it is over, by somebody's wish


class Backend(Protocol):
    """Starts, watches and stops attempts. Register one under the entry point group `longshore.backends`."""

    @property
    def capabilities(self) -> Capabilities:
        """What it promises."""
        ...

    def observe(self) -> tuple[NodeView, ...]:
        """Return all its nodes, in cluster-file order.

        Raises:
            BackendError: If they cannot all be told.
        """
        ...

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Start an attempt on exactly these GPUs. Doing it again does nothing; an attempt never starts twice.

        Raises:
            CannotHonourError: If these GPUs cannot be given.
            RefusedError: If it will never be started, as its program is not there.
            BackendError: If it is not known whether it starts.
        """
        ...

    def status(self, name: str) -> Status:
        """Return what is known of an attempt."""
        ...

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts in one reading."""
        ...

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, and kill it after its grace; returns at once, and may be asked again."""
        ...

    def released(self, name: str) -> bool:
        """Say whether all processes of an attempt are proven gone; False where that is not known."""
        ...

    def logs(self, name: str, rank: int, offset: int, most: int) -> tuple[bytes, int]:
        """Return at most so many bytes of a rank's output from an offset on, and the offset after them.

        Raises:
            NoLogError: If there is no such rank.
            BackendError: If it cannot be read at the moment.
        """
        ...

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left at the backend, but for its logs."""
        ...


@runtime_checkable
class Holds(Protocol):
    """What a backend has beside, if jobs may come by its own way."""

    def held(self) -> Sequence[Held]:
        """Return all jobs that came so, those that are over too as long as the backend knows them.

        Until it is called again, nothing newer is told of them by anything else.

        Raises:
            BackendError: If they cannot all be told.
        """
        ...

    def discard(self, job: str) -> None:
        """End a job that came so, for good.

        Raises:
            BackendError: If it is not known whether it ends.
        """
        ...


def refuse_placement(attempt: Attempt, placement: Placement, nodes: Mapping[str, int]) -> None:
    """Refuse GPUs that are not there.

    Args:
        attempt: Whose they are to be.
        placement: The GPUs.
        nodes: GPUs of each node.

    Raises:
        CannotHonourError: If there are no such GPUs, or one is named twice.
    """
    for share in placement:
        _refuse_share(share, nodes)
    if not placement or len({share.node for share in placement}) != len(placement):
        raise CannotHonourError(f"{attempt.name}: a placement names each of its nodes once, not {placement}")


def refuse_texts(attempt: Attempt) -> None:
    """Refuse what cannot be passed to a program.

    Raises:
        RefusedError: If another backend holds it, the command is empty, or a text cannot be an argument or variable.
    """
    if attempt.is_held:
        raise RefusedError(f"{attempt.name}: the job came by another backend, which holds it")
    if not attempt.command:
        raise RefusedError(f"{attempt.name}: its command is empty")
    for text in (*attempt.command, attempt.folder, *attempt.environment, *attempt.environment.values()):
        try:
            passes = b"\0" not in os.fsencode(text)
        except UnicodeEncodeError:
            passes = False
        if not passes:
            raise RefusedError(f"{attempt.name}: {text!r} cannot be passed to a program")
    for key in attempt.environment:
        if not key or "=" in key:
            raise RefusedError(f"{attempt.name}: {key!r} cannot be the name of an environment variable")


def _refuse_share(share: Share, nodes: Mapping[str, int]) -> None:
    if share.node not in nodes:
        raise CannotHonourError(f"no node {share.node!r}; there are {', '.join(nodes)}")
    ascending = list(share.gpus) == sorted(set(share.gpus))
    if not share.gpus or not ascending or not 0 <= share.gpus[0] <= share.gpus[-1] < nodes[share.node]:
        raise CannotHonourError(f"node {share.node} has GPUs 0 to {nodes[share.node] - 1}, asked for {share.gpus}")


log = logging.getLogger(__name__)

T = TypeVar("T")


def ask(call: Callable[[], T]) -> T:
    """Ask the backend something: whatever goes wrong there must not hold up anything else.

    Raises:
        BackendError: If it does not answer, or by mistake raises something else.
    """
    try:
        return call()
    except BackendError:
        raise
    except Exception as error:
        log.error("the backend failed: %s", words_of(error), exc_info=error)
        raise BackendError(f"the backend failed: {type(error).__name__}: {error}") from error
