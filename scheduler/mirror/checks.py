"""Whether a decision can be carried out, and what is expected of it; the cluster stays as it is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...cluster.dispatch.expected import expected_run_s
from ...cluster.dispatch.order import may_wait
from ...cluster.dispatch.placing import picked_slowdown, take_gpu
from ...cluster.dispatch.turning import turn_to
from ...cluster.files.errors import PluginError
from .standing import ROW, Expected

if TYPE_CHECKING:
    from .cluster_mirror import ClusterMirror


def check_gpus(mirror: "ClusterMirror", job: str, gpus: Sequence[int]) -> None:
    """Refuse GPUs that a waiting job cannot have.

    Raises:
        PluginError: Saying why.
    """
    state = mirror.sim.state
    if not mirror.has(job) or state.run_place[ROW, mirror.slot(job)] >= 0:
        raise PluginError(f"job {job} does not wait")
    asked = mirror.asked(job).gpus
    if len(gpus) != asked or len(set(gpus)) != asked:
        raise PluginError(f"job {job} asks for {asked} GPUs and was given {len(set(gpus))}")
    for gpu in gpus:
        if not 0 <= gpu < state.gpu_job.shape[1]:
            raise PluginError(f"there is no GPU {gpu}")
        if state.gpu_job[ROW, gpu] >= 0 or state.gpu_down[ROW, gpu] > 0:
            raise PluginError(f"GPU {gpu} is {'busy' if state.gpu_job[ROW, gpu] >= 0 else 'out of service'}")
        if not mirror.suits(job)[gpu]:
            raise PluginError(f"GPU {gpu} is of a node that does not suit job {job}")


def check_claim(mirror: "ClusterMirror", job: str, gpu: int) -> None:
    """Refuse a GPU that a running job cannot have beside its own.

    Raises:
        PluginError: Saying why.
    """
    state = mirror.sim.state
    if not mirror.has(job) or state.run_place[ROW, mirror.slot(job)] < 0:
        raise PluginError(f"job {job} does not run")
    if not 0 <= gpu < state.gpu_job.shape[1] or state.gpu_job[ROW, gpu] >= 0 or state.gpu_down[ROW, gpu] > 0:
        raise PluginError(f"GPU {gpu} is not free")


def check_held(mirror: "ClusterMirror", job: str, gpu: int) -> None:
    """Refuse a GPU that a running job does not hold.

    Raises:
        PluginError: If it does not.
    """
    if not mirror.has(job) or gpu not in mirror.picks(job) or mirror.sim.state.run_place[ROW, mirror.slot(job)] < 0:
        raise PluginError(f"job {job} does not run on GPU {gpu}")


def check_decision(mirror: "ClusterMirror", job: str, gpus: Sequence[int]) -> None:
    """Refuse a decision that cannot be carried out; the job that is due stays so.

    Args:
        mirror: The cluster; a job is due.
        job: That starts, or waits if it has no GPUs.
        gpus: That it starts on.

    Raises:
        PluginError: Saying why.
    """
    due = mirror.current
    if not gpus:
        if job != due:
            raise PluginError(f"job {job} cannot wait in the place of job {due}")
        if not may_wait(mirror.sim, ROW):
            raise PluginError(f"job {job} may not wait at this moment")
        return
    check_gpus(mirror, job, gpus)
    if job != due:
        turned = turn_to(mirror.sim, ROW, mirror.slot(job))
        mirror.due()
        if not turned:
            raise PluginError(f"job {job} may not start before job {due}")


def expected(mirror: "ClusterMirror", job: str, gpus: Sequence[int]) -> Expected:
    """Return what is expected of a job on GPUs that it could start on now; the job that is due stays so.

    Raises:
        PluginError: If it could not.
    """
    check_decision(mirror, job, gpus)
    slot = mirror.slot(job)
    turn_to(mirror.sim, ROW, slot)
    for gpu in gpus:
        take_gpu(mirror.sim, ROW, gpu)
    slowdown = float(picked_slowdown(mirror.sim, ROW))
    end_s = mirror.now_s + float(expected_run_s(mirror.sim, ROW, slot, slowdown))
    mirror.take_back()
    mirror.due()
    return Expected(slowdown, end_s)
