"""From an attempt to the Slurm job that runs it, and the end of one that does not end by itself."""

import logging
import math
import os
import shlex
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial

from ....cluster.files.errors import BackendError
from ....cluster.model.placement import Placement, Share
from ..local.folders import NO_FILE_OF_OURS, opened_folder
from ..local.ranks import Spec, read_spec
from ..local.ring_files import Piece
from ..local.supervision import python_command
from ..protocol import CannotHonourError
from ..shared_folder.node import SWITCHED_OFF, prove_never_started, write_proof
from .commands import Commands, SlurmNode, SlurmSnapshot

_LIMIT_SPARE_S = 120.0  # between the attempt's own limit and Slurm's, beside its grace
_ENDING_AGAIN_S = 5.0  # between two tries
# Of a sweep, so that it fits beside the node's other jobs: without a request Slurm may give it the whole memory.
_SWEEP_SIZE = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=128M", "--time=10")  # minutes; usually seconds
_LATE_S = 30.0  # after an attempt's grace, when Slurm has to kill what does not end

log = logging.getLogger(__name__)


def comment_of(attempt: str, piece: int | None = None) -> str:
    """Return the comment that identifies the Slurm job of an attempt, or of a piece of its ring.

    Numbers of jobs are reused after a crash of Slurm.
    """
    return f"longshore:{attempt}" if piece is None else f"longshore:{attempt}:{piece}"


def _sweep_comment_of(attempt: str, part: int) -> str:
    """Return the comment of the Slurm job that ends what is left of an attempt on its N-th node."""
    return f"longshore-sweep:{attempt}:{part}"


def submit(
    commands: Commands,
    spec: Spec,
    placement: Placement,
    nodes: Mapping[str, SlurmNode],
    path: str,
    options: Sequence[str],
) -> None:
    """Submit an attempt with its final nodes and GPUs.

    Raises:
        CannotHonourError: If Slurm cannot give these GPUs.
        BackendError: If it is not known whether it took the job.
    """
    requests = [(share.node, f"--gres={gres_request(share, nodes)}") for share in placement]
    # Unequal requests of several nodes only fit into a heterogeneous job, with one component for each.
    if len({gres for _, gres in requests}) == 1:
        names = ",".join(node for node, _ in requests)
        where = [[f"--nodes={len(requests)}", "--ntasks-per-node=1", f"--nodelist={names}", requests[0][1]]]
    else:
        where = [["--nodes=1", "--ntasks=1", f"--nodelist={node}", gres] for node, gres in requests]
    common = [*_name_options(spec.attempt, comment_of(spec.attempt), path), *_time_option(spec), *options]
    arguments = ["--parsable"]
    for number, component in enumerate(where):
        arguments += [":"] * (number > 0) + common + component
    line = python_command("slurm.node", "lead", path, nodes[placement[0].node].address, commands.srun_path)
    _sbatch(commands, arguments, line)


@lru_cache(4096)
def resolved_address(name: str) -> str:
    """Return the address that a node's name has on this machine, the name itself if it has none.

    The node's own view of its name may be a loopback address, at which no other machine reaches its coordinator.
    """
    try:
        return str(socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)[0][4][0])
    except OSError:
        return name


def submit_piece(
    commands: Commands, spec: Spec, piece: Piece, nodes: Mapping[str, SlurmNode], path: str, options: Sequence[str]
) -> None:
    """Submit a piece of a ring, with its node and GPUs.

    Raises:
        CannotHonourError: If Slurm cannot give these GPUs.
        BackendError: If it is not known whether it took the job.
    """
    gres = gres_request(Share(piece.node, tuple(piece.gpus.values())), nodes)
    where = ["--nodes=1", "--ntasks=1", f"--nodelist={piece.node}", f"--gres={gres}"]
    common = [*_name_options(spec.attempt, comment_of(spec.attempt, piece.number), path), *_time_option(spec), *options]
    line = python_command(
        "slurm.node", "run_piece", path, str(piece.number), resolved_address(nodes[piece.node].address)
    )
    _sbatch(commands, ["--parsable", *common, *where], line)


def _submit_sweep(commands: Commands, spec: Spec, part: int, node: str, path: str, options: Sequence[str]) -> None:
    """Submit a job that ends what is left of an attempt on a node, as soon as the node takes jobs."""
    common = _name_options(f"{spec.attempt}-sweep", _sweep_comment_of(spec.attempt, part), path)
    where = [*_SWEEP_SIZE, f"--nodelist={node}"]
    line = python_command("shared_folder.node", "sweep", path, str(part))
    _sbatch(commands, ["--parsable", *common, *options, *where], line)


def _sbatch(commands: Commands, arguments: list[str], line: list[str]) -> None:
    commands.call("sbatch", arguments, f"#!/bin/sh\nexec {shlex.join(line)}\n")


def _name_options(name: str, comment: str, path: str) -> list[str]:
    log = f"{path}/slurm.log".replace("%", "%%")
    return [
        "--no-requeue", f"--job-name={name}", f"--comment={comment}", f"--chdir={path}", f"--output={log}",
        "--open-mode=append",
    ]  # fmt: skip


def _time_option(spec: Spec) -> list[str]:
    if spec.limit_s is None:
        return []
    return [f"--time={math.ceil((spec.limit_s + spec.grace_s + _LIMIT_SPARE_S) / 60.0)}"]


def gres_request(share: Share, nodes: Mapping[str, SlurmNode]) -> str:
    """Return the request of a Slurm job for exactly these GPUs of a node.

    Raises:
        CannotHonourError: If Slurm cannot give them.
    """
    types = nodes[share.node].types if share.node in nodes else {}
    missing = [gpu for gpu in share.gpus if gpu not in types]
    if missing:
        raise CannotHonourError(
            f"Slurm cannot give GPUs {missing} of node {share.node} by their index; "
            f"gres.conf needs a line for each with a type that ends in it, such as Type=i{missing[0]}"
        )
    return ",".join(f"gpu:{types[gpu]}:1" for gpu in share.gpus)


def is_late_to_stop(folder: int) -> bool:
    """Return whether an attempt should have ended by itself since it was cancelled.

    With a damaged spec the grace is not known, and there is no waiting.

    Raises:
        OSError: If that is not known.
    """
    cancelled_s = os.stat("cancel.json", dir_fd=folder, follow_symlinks=False).st_mtime
    try:
        return not time.time() <= cancelled_s + read_spec(folder).grace_s + _LATE_S
    except (ValueError, TypeError, OverflowError):
        return True
    except OSError as error:
        if error.errno not in NO_FILE_OF_OURS:
            raise
        return True


class Cleanup:
    """Ends by Slurm what does not end by itself, and what is left on nodes whose supervisor is gone."""

    def __init__(self, commands: Commands, options: Sequence[str]) -> None:
        self._commands, self._options = commands, options
        self._again_s: dict[str, float] = {}  # before which nothing is tried again, by what
        self._over_s: dict[str, float] = {}  # when the Slurm job of an attempt's part was first found to be over

    def kill(self, attempt: str) -> None:
        """Let Slurm kill an attempt's jobs, by its name: a number could be another job's by now."""
        self._try_unless_recent(
            f"scancel {attempt}", partial(self._commands.call, "scancel", ("--me", f"--name={attempt}"))
        )

    def kill_pending(self, attempt: str) -> None:
        """Let Slurm forget those of an attempt's jobs that wait to be started."""
        arguments = ("--me", f"--name={attempt}", "--state=PENDING")
        self._try_unless_recent(f"scancel-pending {attempt}", partial(self._commands.call, "scancel", arguments))

    def sweep(self, folder: int, path: str, parts: Collection[tuple[int, str]], snapshot: SlurmSnapshot) -> None:
        """Get the proof that nothing is left of parts of an attempt whose Slurm jobs are over.

        Args:
            folder: Descriptor of the attempt's folder.
            path: The same folder.
            parts: Number and node of each.
            snapshot: In which their jobs are over.

        Raises:
            OSError: If the folder cannot be used.
        """
        spec = read_spec(folder)
        for part, node in parts:
            if snapshot.read_s <= self._over_s.setdefault(f"{spec.attempt} {part}", time.monotonic()):
                continue  # The snapshot may be older than the job: the next one is not.
            if _prove_empty(folder, spec.attempt, part, snapshot.nodes.get(node)):
                continue
            jobs = snapshot.jobs.get(_sweep_comment_of(spec.attempt, part), ())
            if all(job.is_over for job in jobs):
                do = partial(_submit_sweep, self._commands, spec, part, node, path, self._options)
                self._try_unless_recent(f"sweep {spec.attempt} {part}", do)

    def forget(self, attempt: str) -> None:
        """Forget the retries for an attempt."""
        self._over_s = {key: over_s for key, over_s in self._over_s.items() if key.split()[0] != attempt}
        self._again_s = {key: at_s for key, at_s in self._again_s.items() if attempt not in key.split()}

    def _try_unless_recent(self, key: str, action: Callable[[], object]) -> None:
        """Do something unless it was tried lately; after a failure the next call tries again."""
        if time.monotonic() < self._again_s.get(key, 0.0):
            return
        self._again_s[key] = time.monotonic() + _ENDING_AGAIN_S
        try:
            action()
        except BackendError as error:
            log.warning("%s: %s", key, error)


def _prove_empty(folder: int, attempt: str, part: int, node: SlurmNode | None) -> bool:
    """Return whether nothing can be left on a node, without a sweep there; if so, write the proof."""
    if prove_never_started(folder, attempt, part):
        return True
    if node is None or not node.is_fenced:
        return False
    with opened_folder(f"part-{part}", folder) as own:
        write_proof(own, attempt, SWITCHED_OFF)
    return True
