"""The Kubernetes backend on the double of a cluster, whose pods are real processes."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.backends.kubernetes.backend import KubernetesBackend
from longshore.scheduler.backends.protocol import Attempt, RefusedError
from longshore.scheduler.model.states import Run
from longshore.scheduler.rules.attempts import ExitClass, classify_end
from tests.kubernetes_double.cluster import uuid_of
from tests.kubernetes_double.objects import Object
from tests.scheduler.backends.attempts import (
    ONE_GPU,
    THREE_GPUS,
    lives,
    number_in,
    shell_attempt,
    until,
    wait_for_end,
    wait_until_running,
)
from tests.scheduler.backends.kubernetes_trials import Trial


@pytest.fixture
def backend(trial: Trial) -> KubernetesBackend:
    return trial.make()


def pods_of(trial: Trial, attempt: Attempt) -> list[Object]:
    return [pod for pod in trial.cluster.pods() if pod["metadata"]["labels"]["longshore.io/attempt"] == attempt.name]


def edit_pod(trial: Trial, attempt: Attempt, number: int, change: Callable[[Object], None]) -> None:
    def edit(pod: Object) -> Object:
        change(pod)
        return pod

    trial.cluster.objects.update(("pods", "longshore", f"{attempt.name}-{number}"), edit)


def random_placements(nodes: dict[str, int], rng: random.Random) -> list[Placement]:
    """Deal out all GPUs of a cluster to jobs of random sizes."""
    gpus = [(node, gpu) for node, count in nodes.items() for gpu in range(count)]
    rng.shuffle(gpus)
    placements = []
    while gpus:
        size = min(rng.randint(1, 6), len(gpus))
        taken, gpus = sorted(gpus[:size]), gpus[size:]
        names = sorted({node for node, _ in taken})
        placements.append(tuple(Share(name, tuple(gpu for node, gpu in taken if node == name)) for name in names))
    return placements


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(2))
def test_ranks_report_exactly_the_gpus_of_random_placements_from_inside(tmp_path: Path, seed: int) -> None:
    nodes = {"a": 4, "b": 2, "c": 8, "d": 3}
    trial = Trial(tmp_path, nodes)
    backend = trial.make()
    of_torch = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE"
    script = f"echo {of_torch} $LONGSHORE_NODE $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES"
    placements = random_placements(nodes, random.Random(seed))
    attempts = [shell_attempt(script) for _ in placements]
    try:
        for attempt, placement in zip(attempts, placements, strict=True):
            backend.launch(attempt, placement)
        for attempt, placement in zip(attempts, placements, strict=True):
            assert {end.code for end in wait_for_end(backend, attempt).ends} == {0}
            world, rank = sum(len(share.gpus) for share in placement), 0
            for share in placement:
                uuids = [uuid_of(share.node, gpu) for gpu in share.gpus]
                for local_rank, uuid in enumerate(uuids):
                    *reported, seen, given = backend.logs(attempt.name, rank, 0, 1000)[0].decode().split()
                    assert reported == [str(n) for n in (rank, world, local_rank, len(share.gpus), share.node)]
                    assert seen.split(",")[local_rank] == uuid
                    assert sorted(seen.split(",")) == sorted(given.split(",")) == sorted(uuids)
                    rank += 1
    finally:
        trial.end()


def test_ranks_of_several_pods_meet_at_the_first_one(backend: KubernetesBackend) -> None:
    attempt = shell_attempt("echo $MASTER_ADDR $MASTER_PORT")
    backend.launch(attempt, THREE_GPUS)
    wait_for_end(backend, attempt)
    reported = {backend.logs(attempt.name, rank, 0, 1000)[0] for rank in range(3)}
    assert reported == {f"{attempt.name}-0.longshore-ranks.longshore.svc 29500\n".encode()}


def test_no_pod_starts_before_all_are_there(trial: Trial, backend: KubernetesBackend, tmp_path: Path) -> None:
    attempt = shell_attempt(f"echo started >> {tmp_path}/starts")
    trial.cluster.objects.create(("pods", "longshore", f"{attempt.name}-1"), strange_pod(attempt))
    with pytest.raises(BackendError, match="another pod"):
        backend.launch(attempt, THREE_GPUS)
    first = next(pod for pod in trial.cluster.pods() if pod["metadata"]["name"] == f"{attempt.name}-0")
    assert first["spec"]["schedulingGates"]
    assert not (tmp_path / "starts").exists()


def strange_pod(attempt: Attempt) -> Object:
    container = {"name": "main", "image": "any", "command": ["true"]}
    meta = {"name": f"{attempt.name}-1", "labels": {}}
    return {"metadata": meta, "spec": {"containers": [container], "schedulingGates": [{"name": "x"}]}, "status": {}}


def test_a_failed_rank_stops_the_ranks_of_other_pods(backend: KubernetesBackend) -> None:
    attempt = shell_attempt("[ $RANK = 2 ] && exit 3; exec sleep 1000")
    backend.launch(attempt, THREE_GPUS)
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.EXITED, "rank failed")
    assert {(end.rank, end.code, end.signal) for end in status.ends} == {(2, 3, 0), (0, 0, 15), (1, 0, 15)}
    assert status.ends[0].rank == 2


def test_gpus_are_held_until_the_last_process_that_ignores_its_end_is_gone(
    backend: KubernetesBackend, tmp_path: Path
) -> None:
    script = f"trap '' TERM; setsid sh -c \"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 1000\" & sleep 1000; wait"
    attempt = shell_attempt(script.replace("$$", "\\$\\$"), grace_s=0.5)
    backend.launch(attempt, ONE_GPU)
    pid = number_in(tmp_path / "pid")
    backend.cancel(attempt.name, "no longer wanted")
    until(lambda: backend.is_proven_gone(attempt.name) or not lives(pid))
    assert not lives(pid)
    status = wait_for_end(backend, attempt)
    assert (status.reason, [end.signal for end in status.ends]) == ("cancelled", [9])


def test_a_job_that_runs_too_long_is_stopped(backend: KubernetesBackend) -> None:
    attempt = shell_attempt("exec sleep 1000", limit_s=0.2)
    backend.launch(attempt, ONE_GPU)
    assert wait_for_end(backend, attempt).reason == "time limit"


def test_progress_is_reported_at_the_end(backend: KubernetesBackend) -> None:
    attempt = shell_attempt("""echo '{"saved_s": 12.5, "note": "x", "step": 7}' > $LONGSHORE_PROGRESS""")
    backend.launch(attempt, ONE_GPU)
    assert wait_for_end(backend, attempt).progress == {"saved_s": 12.5, "step": 7.0}


@pytest.mark.few(2)
@pytest.mark.parametrize("reported", ["[1]", '{"saved_s": NaN}', '{"step": 1' + "0" * 500 + "}", "[" * 900, "{"])
def test_progress_that_makes_no_sense_does_not_hide_how_a_job_ended(backend: KubernetesBackend, reported: str) -> None:
    attempt = shell_attempt(f"echo '{reported}' > $LONGSHORE_PROGRESS")
    backend.launch(attempt, ONE_GPU)
    status = wait_for_end(backend, attempt)
    assert (status.run, status.progress, [end.code for end in status.ends]) == (Run.EXITED, {}, [0])


def test_a_killed_container_ends_all_its_ranks(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, THREE_GPUS)
    wait_until_running(backend, attempt)
    [pod] = [pod for pod in pods_of(trial, attempt) if pod["spec"]["nodeName"] == "a"]
    trial.cluster.kubelets["a"].containers[pod["metadata"]["uid"]].process.kill()
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.EXITED, "rank failed")
    assert [(end.rank, end.signal) for end in status.ends] == [(0, 9), (1, 9), (2, 15)]


def test_an_image_that_cannot_be_had_for_long_is_refused_when_it_is_launched_again(trial: Trial) -> None:
    patient, attempt = trial.make(image="no-such-image"), shell_attempt("true")
    patient.launch(attempt, ONE_GPU)
    until(lambda: pods_of(trial, attempt)[0]["status"].get("containerStatuses"))
    patient.launch(attempt, ONE_GPU)
    backend = trial.make(image="no-such-image", bind_s=0.3)

    def refusal() -> str:
        try:
            backend.launch(attempt, ONE_GPU)
        except RefusedError as error:
            return str(error)
        return ""

    assert "ImagePullBackOff" in until(refusal)
    backend.cancel(attempt.name, "it was refused")
    assert wait_for_end(backend, attempt).reason == "cancelled"


def test_an_attempt_that_no_node_takes_is_dropped_whole_and_is_the_clusters_fault(trial: Trial, tmp_path: Path) -> None:
    backend = trial.make(bind_s=0.3)
    trial.cluster.kubelets["a"].alive = False
    trial.cluster.cordon("b")
    attempt = shell_attempt(f"touch {tmp_path}/started-$RANK; exec sleep 1000")
    backend.launch(attempt, THREE_GPUS)
    trial.cluster.kubelets["a"].alive = True
    status = wait_for_end(backend, attempt)
    assert status.run is Run.LOST
    assert "was not bound within 0.3 s" in status.reason
    assert classify_end(status)[0] is ExitClass.INFRASTRUCTURE
    assert not (tmp_path / "started-2").exists()


def test_a_node_that_does_not_answer_frees_nothing_and_its_job_is_found_again(
    trial: Trial, backend: KubernetesBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt(f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    pid = number_in(tmp_path / "pid")
    wait_until_running(backend, attempt)
    trial.cluster.kubelets["a"].alive = False
    trial.cluster.set_ready("a", "Unknown")
    until(lambda: backend.status(attempt.name).run is Run.UNREACHABLE)
    backend.cancel(attempt.name, "asked while nobody hears it")
    assert not backend.is_proven_gone(attempt.name)
    assert [node.takes_jobs for node in backend.observe()] == [False, True]
    assert lives(pid)
    trial.cluster.kubelets["a"].alive = True
    trial.cluster.set_ready("a", "True")
    until(lambda: backend.observe()[0].takes_jobs)
    assert wait_for_end(backend, attempt).reason == "cancelled"
    assert not lives(pid)


def test_a_pod_that_its_cluster_ended_is_the_clusters_fault(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    trial.cluster.kubelets["a"].alive = False

    def end(pod: Object) -> None:
        reason = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "node gone"}
        pod["status"] |= {"phase": "Failed", "conditions": [reason]}  # the node's last word stays: it runs

    edit_pod(trial, attempt, 0, end)
    status = wait_for_end(backend, attempt)
    assert status.run is Run.LOST
    assert classify_end(status) == (ExitClass.INFRASTRUCTURE, f"{attempt.name}-0: DeletionByPodGC: node gone")


def test_a_pod_that_was_deleted_by_force_is_lost_and_never_started_again(
    trial: Trial, backend: KubernetesBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt(f"echo started >> {tmp_path}/starts; exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    until((tmp_path / "starts").exists)
    edit_pod(trial, attempt, 0, lambda pod: pod["metadata"].pop("finalizers"))
    trial.cluster.objects.delete(("pods", "longshore", f"{attempt.name}-0"), None, 0)
    until(lambda: backend.status(attempt.name).run is Run.LOST)
    backend.launch(attempt, ONE_GPU)
    assert trial.cluster.pods() == []
    assert (tmp_path / "starts").read_text() == "started\n"


def test_what_is_forgotten_leaves_no_object_in_the_cluster(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("echo $RANK")
    backend.launch(attempt, THREE_GPUS)
    before = wait_for_end(backend, attempt)
    backend.forget(attempt.name)
    assert trial.cluster.pods() == []
    until(lambda: trial.cluster.objects.each("resourceclaims", "") == [])
    assert until(lambda: backend.status(attempt.name)) == before
    assert trial.make().logs(attempt.name, 2, 0, 100)[0] == b"2\n"


def test_a_lost_gpu_is_out_of_service_and_the_others_keep_their_indices(
    trial: Trial, backend: KubernetesBackend
) -> None:
    def lose(piece: Object) -> Object:
        del piece["spec"]["devices"][1]
        return piece

    backend.observe()
    trial.cluster.objects.update(("resourceslices", "", "a-gpu.nvidia.com"), lose)
    until(lambda: [gpu.healthy for gpu in backend.observe()[0].gpus] == [True, False, True, True])
    fresh = trial.make()
    attempt = shell_attempt("echo $CUDA_VISIBLE_DEVICES")
    fresh.launch(attempt, (Share("a", (2,)),))
    wait_for_end(fresh, attempt)
    assert fresh.logs(attempt.name, 0, 0, 100)[0] == b"GPU-a-2\n"


def test_a_cordoned_node_keeps_its_job_and_gets_no_other(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    trial.cluster.cordon("a")
    until(lambda: [node.takes_jobs for node in backend.observe()] == [False, True])
    assert all(gpu.healthy for gpu in backend.observe()[0].gpus)
    assert backend.status(attempt.name).run is Run.RUNNING
    backend.cancel(attempt.name, "no longer wanted")
    wait_for_end(backend, attempt)


def test_a_tainted_gpu_is_out_of_service(trial: Trial, backend: KubernetesBackend) -> None:
    def taint(piece: Object) -> Object:
        piece["spec"]["devices"][0]["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": "NoExecute"}]
        return piece

    trial.cluster.objects.update(("resourceslices", "", "b-gpu.nvidia.com"), taint)
    until(lambda: [gpu.healthy for gpu in backend.observe()[1].gpus] == [False, True])


def test_a_driver_that_says_nothing_stops_no_job(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    trial.cluster.objects.delete(("resourceslices", "", "a-gpu.nvidia.com"), None, None)
    until(lambda: not backend.observe()[0].takes_jobs)
    assert backend.status(attempt.name).run is Run.UNREACHABLE


def test_where_gpus_are_counted_the_choice_is_advice_and_says_so(trial: Trial) -> None:
    backend = trial.make(gpus="counts")
    attempt = shell_attempt("echo $LONGSHORE_NODE $LOCAL_RANK $CUDA_VISIBLE_DEVICES $LONGSHORE_GPUS")
    backend.launch(attempt, (Share("a", (1, 3)),))
    wait_for_end(backend, attempt)
    assert not backend.capabilities.exact_gpus
    assert [backend.logs(attempt.name, rank, 0, 100)[0] for rank in (0, 1)] == [b"a 0 0,1 1,3\n", b"a 1 0,1 1,3\n"]
    assert pods_of(trial, attempt)[0]["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "2"}}


def test_pods_have_the_image_of_the_job_and_the_fields_of_the_settings(trial: Trial) -> None:
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "images"}}
    given = {
        "volumes": [data],
        "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}], "resources": {"limits": {"cpu": "8"}}},
    }
    backend = trial.make(pod=given)
    job = shell_attempt("true")
    attempt = Attempt(job.name, job.job, 1, job.command, "", {}, image="train:2.7")
    backend.launch(attempt, ONE_GPU)
    [pod] = pods_of(trial, attempt)
    container = pod["spec"]["containers"][0]
    assert container["image"] == "train:2.7"
    assert data in pod["spec"]["volumes"]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert container["resources"] == {"limits": {"cpu": "8"}, "claims": [{"name": "gpus"}]}


def test_a_command_that_no_program_could_be_given_is_refused(backend: KubernetesBackend) -> None:
    attempt = shell_attempt(" " * (128 << 10))
    with pytest.raises(RefusedError, match="131072 bytes"):
        backend.launch(attempt, ONE_GPU)
    assert backend.status(attempt.name).run is Run.ABSENT


def test_output_is_passed_on_byte_by_byte(backend: KubernetesBackend) -> None:
    attempt = shell_attempt(r"printf 'a\rb\n\377\000c'; seq 20000; printf end")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    wanted = b"a\rb\n\xff\x00c" + b"".join(b"%d\n" % number for number in range(1, 20001)) + b"end"
    assert backend.logs(attempt.name, 0, 0, 1 << 30) == (wanted, len(wanted))


def test_output_that_was_read_once_can_be_read_without_its_node(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("echo early; exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    until(lambda: backend.logs(attempt.name, 0, 0, 100)[0])
    trial.cluster.kubelets["a"].alive = False
    assert backend.logs(attempt.name, 0, 0, 100) == (b"early\n", 6)
    with pytest.raises(BackendError, match="connection refused"):
        backend.logs(attempt.name, 0, 6, 100)


def test_output_that_its_node_gave_up_is_a_hole(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("seq 20000")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    [pod] = pods_of(trial, attempt)
    container = trial.cluster.kubelets["a"].containers[pod["metadata"]["uid"]]
    container.forget_first_lines(10_000)
    piece, offset = backend.logs(attempt.name, 0, 0, 1 << 30)
    wanted = b"".join(b"%d\n" % number for number in range(1, 20001))
    assert offset == len(wanted)
    assert wanted.endswith(piece.lstrip(b"\0"))
    assert len(piece) < len(wanted)
