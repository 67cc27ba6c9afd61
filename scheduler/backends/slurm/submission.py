"""From an attempt to the Slurm job that runs it."""

import math
import shlex
from collections.abc import Mapping, Sequence

from ....cluster.files.errors import BackendError
from ...model.placement import Placement, Share
from ..local.supervisor.spec import Spec
from ..protocol import CannotHonourError
from ..shared_folder.python import python_line
from .commands import Commands
from .snapshot import Node

NEVER = ("node configuration is not available", "Invalid node name", "Invalid generic resource")  # whatever one waits
_LIMIT_SPARE_S = 120.0  # between the attempt's own limit and Slurm's, beside its grace


def comment_of(attempt: str) -> str:
    """Return what an attempt's Slurm job is known by; its number may be another job's after a crash of Slurm."""
    return f"longshore:{attempt}"


def sweep_comment_of(attempt: str, part: int) -> str:
    """Return what the Slurm job is known by that ends what is left of an attempt on its N-th node."""
    return f"longshore-sweep:{attempt}:{part}"


def submit(
    commands: Commands, spec: Spec, placement: Placement, nodes: Mapping[str, Node], path: str, options: Sequence[str]
) -> None:
    """Submit an attempt with its final nodes and GPUs.

    Args:
        commands: Slurm's.
        spec: The attempt.
        placement: GPUs for it.
        nodes: All nodes, by name.
        path: The attempt's folder.
        options: Further options of sbatch.

    Raises:
        CannotHonourError: If Slurm cannot give these GPUs.
        BackendError: If it is not known whether it took the job.
    """
    requests = [(share.node, f"--gres={gres_of(share, nodes)}") for share in placement]
    # Unequal requests of several nodes only fit into a heterogeneous job, with one component for each.
    if len({gres for _, gres in requests}) == 1:
        names = ",".join(node for node, _ in requests)
        where = [[f"--nodes={len(requests)}", "--ntasks-per-node=1", f"--nodelist={names}", requests[0][1]]]
    else:
        where = [["--nodes=1", "--ntasks=1", f"--nodelist={node}", gres] for node, gres in requests]
    common = [*_named(spec.attempt, comment_of(spec.attempt), path), *_limit(spec), *options]
    arguments = ["--parsable"]
    for number, component in enumerate(where):
        arguments += [":"] * (number > 0) + common + component
    _sbatch(
        commands, arguments, python_line("slurm.node", "lead", path, nodes[placement[0].node].address, commands.srun)
    )


def submit_sweep(commands: Commands, spec: Spec, part: int, node: str, path: str, options: Sequence[str]) -> None:
    """Submit a job that ends what is left of an attempt on a node, as soon as the node takes jobs.

    Args:
        commands: Slurm's.
        spec: The attempt.
        part: Number of the node in it.
        node: Its name.
        path: The attempt's folder.
        options: Further options of sbatch.

    Raises:
        BackendError: If it is not known whether Slurm took the job.
    """
    common = _named(f"{spec.attempt}-sweep", sweep_comment_of(spec.attempt, part), path)
    where = ["--nodes=1", "--ntasks=1", f"--nodelist={node}"]
    _sbatch(
        commands,
        ["--parsable", *common, *options, *where],
        python_line("shared_folder.sweep", "sweep", path, str(part)),
    )


def _sbatch(commands: Commands, arguments: list[str], line: list[str]) -> None:
    try:
        commands.call("sbatch", arguments, f"#!/bin/sh\nexec {shlex.join(line)}\n")
    except BackendError as error:
        if any(words in str(error) for words in NEVER):
            raise CannotHonourError(str(error)) from error
        raise


def _named(name: str, comment: str, path: str) -> list[str]:
    log = f"{path}/slurm.log".replace("%", "%%")
    return [
        "--no-requeue", f"--job-name={name}", f"--comment={comment}", f"--chdir={path}", f"--output={log}",
        "--open-mode=append",
    ]  # fmt: skip


def _limit(spec: Spec) -> list[str]:
    if spec.limit_s is None:
        return []
    return [f"--time={math.ceil((spec.limit_s + spec.grace_s + _LIMIT_SPARE_S) / 60.0)}"]


def gres_of(share: Share, nodes: Mapping[str, Node]) -> str:
    """Return what a Slurm job has to ask for to get exactly these GPUs of a node.

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
