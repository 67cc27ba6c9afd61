"""Slurm's jobs of other people, told where to run: updated while they are held, looked at, and only then released."""

import re
from collections.abc import Mapping, Sequence

from ....cluster.files.errors import BackendError
from ...model.placement import Placement
from ..protocol import CannotHonourError
from .commands import Commands
from .held.held import HeldJob
from .snapshot import Node
from .submission import NEVER, gres_of

DISABLED = "disabled"  # of requeueing: by its owner or by the site
_SHOWN = re.compile(r"^   (AdminComment|Priority|ReqNodeList|TresPerNode)=(\S*)", re.MULTILINE)
_RUNS = re.compile(r"^   JobState=RUNNING ", re.MULTILINE)
_GRANTED = re.compile(r"^     Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", re.MULTILINE)


def steer(commands: Commands, job: HeldJob, placement: Placement, nodes: Mapping[str, Node]) -> None:
    """Let a held job run on exactly these GPUs.

    Whatever goes wrong, it stays held, and the same may be asked again.

    Args:
        commands: Slurm's.
        job: It is held.
        placement: GPUs for it.
        nodes: All nodes, by name.

    Raises:
        CannotHonourError: If Slurm cannot give these GPUs.
        BackendError: If it is not known whether it was released.
    """
    requests = {gres_of(share, nodes) for share in placement}
    if len(requests) != 1:
        raise CannotHonourError(f"job {job.number} can only have the same GPUs of each node, not {sorted(requests)}")
    gres, names = requests.pop(), [share.node for share in placement]
    # One by one, since Slurm refuses some of them together. An emptied request gives way to the one that follows; any
    # other is added up with it.
    changes = (
        f"NumNodes={len(names)}-{len(names)}", f"ReqNodeList={','.join(names)}", "TresPerJob=", "TresPerNode=",
        f"Gres={gres}",
    )  # fmt: skip
    see_same(commands, job)
    try:
        for change in changes:
            commands.call("scontrol", ("update", f"JobId={job.number}", change))
    except BackendError as error:
        if any(words in str(error) for words in NEVER):
            raise CannotHonourError(str(error)) from error
        raise
    _check(commands, job, gres, names)
    commands.call("scontrol", ("release", job.number))


def _check(commands: Commands, job: HeldJob, gres: str, names: Sequence[str]) -> None:
    """See that a job is what it is to be before it is released.

    Raises:
        BackendError: If it is not.
    """
    shown = show(commands, job.number)
    found = (
        shown.get("AdminComment"), shown.get("Priority"), shown.get("TresPerNode", "").replace("gres:", ""),
        hosts(commands, shown.get("ReqNodeList", "")),
    )  # fmt: skip
    wanted = (job.stamp, "0", gres, sorted(names))
    if found != wanted:
        raise BackendError(f"job {job.number} is {found} after its update, not {wanted}; it stays held")


def see_same(commands: Commands, job: HeldJob) -> None:
    """See that a job's number is not another one's by now.

    Raises:
        BackendError: If it is.
    """
    if show(commands, job.number).get("AdminComment") != job.stamp:
        raise BackendError(f"job {job.number} is not the one that it was")


class RunsOnError(BackendError):
    """A job runs, and may not be put back into Slurm's queue."""


def put_back(commands: Commands, job: HeldJob) -> None:
    """Let a job be held again; what runs of it is killed, unless it may not run a second time.

    Raises:
        RunsOnError: If it may not, and runs on.
        BackendError: If it is not known whether it will be held.
    """
    see_same(commands, job)
    if job.state == "PENDING":
        commands.call("scontrol", ("hold", job.number))
        return
    try:
        commands.call("scontrol", ("requeuehold", job.number))
    except BackendError as error:
        if DISABLED not in str(error):
            raise
        raise RunsOnError(f"job {job.number} may not be requeued (--no-requeue), and runs on to its end") from error


def end(commands: Commands, job: HeldJob) -> None:
    """End a job for good.

    Raises:
        BackendError: If it is not known whether it ends.
    """
    see_same(commands, job)
    commands.call("scancel", (job.number,))


def refuse(commands: Commands, job: HeldJob, reason: str) -> None:
    """End a job that can never be placed, and leave word why where `scontrol show job` shows it.

    Raises:
        BackendError: If it is not known whether it ends.
    """
    see_same(commands, job)
    # Slurm takes no word of a job that is over; and without its stamp nobody would look after one that does not end.
    commands.call("scontrol", ("update", f"JobId={job.number}", f"AdminComment={job.stamp} refused: {reason}"))
    end(commands, job)


def granted(commands: Commands, number: str) -> dict[str, list[int]] | None:
    """Return the GPUs of each node that a job has got, None if it does not run any more.

    Raises:
        BackendError: If Slurm does not tell.
    """
    text = _show(commands, number)
    if _RUNS.search(text) is None:
        return None
    found = _GRANTED.findall(text)
    return {name: _indices(gres) for names, gres in found for name in hosts(commands, names)}


def show(commands: Commands, number: str) -> dict[str, str]:
    """Return what Slurm says of a job: its stamp, priority, request and nodes.

    Raises:
        BackendError: If it does not answer, or there is no such job.
    """
    text = _show(commands, number)
    return dict(reversed(_SHOWN.findall(text)))


def hosts(commands: Commands, text: str) -> list[str]:
    """Return the names of a list of nodes, sorted.

    Raises:
        BackendError: If Slurm does not answer.
    """
    if "[" in text:
        text = ",".join(commands.call("scontrol", ("show", "hostnames", text)).split())
    return sorted(text.split(","))


def _show(commands: Commands, number: str) -> str:
    return commands.call("scontrol", ("show", "--details", "job", number))


def _indices(gres: str) -> list[int]:
    """Return the indices in a text such as `gpu:i1:1(IDX:1),gpu:i3:0(IDX:)`; of an untyped one `gpu:2(IDX:0-1)`."""
    found: list[int] = []
    for part in gres.replace("(IDX:", "\n").split("\n")[1:]:
        for span in part.partition(")")[0].split(","):
            first, _, last = span.partition("-")
            if first:
                found += range(int(first), int(last or first) + 1)
    return sorted(found)
