"""What a Slurm job runs: its leader claims the attempt, and starts one supervisor a node. Standard library only.

Beside what the supervisors write (shared_folder/node.py) the attempt's folder gets `slurm.log`: output of Slurm and of
the supervisors.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

from ....cluster.files.durable import open_folder
from ..local.ranks import read_spec
from ..local.supervision import python_command
from ..local.supervisor import STARTED_BEFORE
from ..shared_folder.node import Grant, claim_attempt, nodes_of
from ..shared_folder.node import run_part as run_granted
from ..shared_folder.node import run_piece as run_granted_piece


def lead(path: str, address: str, srun: str) -> int:
    """Claim an attempt for this Slurm job and run it; another job, or this one started again, does nothing.

    Args:
        path: The attempt's folder.
        address: Of its first node, for its ranks on others.
        srun: Path of that program.

    Returns:
        Exit code of the Slurm job: 0 if all ranks ended well.

    Raises:
        OSError: If the folder cannot be used.
    """
    folder = open_folder(path)
    spec = read_spec(folder)
    nodes, job = nodes_of(spec), int(os.environ["SLURM_JOB_ID"])
    token = claim_attempt(folder, spec.attempt, job=job, parts=len(nodes), ranks=len(spec.ranks), address=address)
    if not token:
        return STARTED_BEFORE
    if len(nodes) == 1:
        return run_part(path, token)
    signal.signal(signal.SIGTERM, lambda *_: None)  # The supervisors get it too, and end what srun waits for.
    code = subprocess.run(_srun_command(srun, len(nodes), path, token), check=False).returncode
    return code or int(not all(_ended_well(path, part) for part in range(len(nodes))))


def _srun_command(srun: str, nodes: int, path: str, token: str) -> list[str]:
    """Return the command that starts a supervisor on each node of this Slurm job."""
    het = os.environ.get("SLURM_HET_SIZE")
    where = [f"--het-group=0-{nodes - 1}"] if het else [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    # A supervisor fails only without an exit marker: then the others must end too.
    how = ["--mpi=none", "--cpu-bind=none", "--input=none", "--kill-on-bad-exit=1", "--wait=0"]
    return [srun, *where, *how, *python_command("slurm.node", "run_part", path, token)]


def run_part(path: str, token: str) -> int:
    """Run the ranks of an attempt on this node, on what Slurm gives it.

    Returns:
        0 if all of them ended well; on one of several nodes 0 once their end is written.

    Raises:
        OSError: If the folder cannot be used.
        ValueError: If the attempt has nothing to run on this node.
    """
    return run_granted(path, token, _read_grant())


def run_piece(path: str, number: str, address: str) -> int:
    """Run a piece of a ring on this node, on what Slurm gives it.

    Args:
        path: The attempt's folder.
        number: Of the piece.
        address: Of this node, for members on others.

    Returns:
        0 if its members ended well.

    Raises:
        OSError: If the folder cannot be used.
        ValueError: If there is no such piece.
    """
    return run_granted_piece(path, int(number), int(os.environ["SLURM_JOB_ID"]), address, _read_grant())


def _read_grant() -> Grant:
    indices = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
    gpus = [int(index) for index in indices.split(",") if index]
    # Where Slurm shuts off all other GPUs, by cgroups, the numbers of these begin at 0.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return Grant("Slurm", os.environ["SLURMD_NODENAME"], gpus, visible)


def _ended_well(path: str, part: int) -> bool:
    ends = json.loads(Path(f"{path}/part-{part}/exit.json").read_bytes())["ends"]
    return bool(ends) and all(code == 0 and number == 0 for _, code, number, _ in ends)
