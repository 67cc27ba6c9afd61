"""One namespace has the pods of one installation, as its Lease object says."""

import time
from pathlib import Path
from typing import Any

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.kubernetes.backend import KubernetesBackend
from longshore.scheduler.model.states import Run
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions
from tests.scheduler.backends.attempts import ONE_GPU, shell_attempt, until, wait_until_running
from tests.scheduler.backends.kubernetes_trials import Trial

CLUSTER = """\
name: trial
node_types:
  four: {gpus: 4, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 1e9, nic_bytes_per_s: 1e9}
  two: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 1e9, nic_bytes_per_s: 1e9}
racks:
  - nodes:
      - {type: four, name: a}
      - {type: two, name: b}
run_time: {model: simple, node_penalty: 0.05}
"""
KEY = ("leases", "longshore", "longshore")


@pytest.fixture
def times(trial: Trial) -> None:
    """Renew at every look, and wait a few seconds for another installation."""
    trial.lease_times = {"hold_s": 3, "renew_s": 0.0}


def spec_of(trial: Trial) -> dict[str, Any]:
    spec: dict[str, Any] = trial.cluster.objects.get(KEY)["spec"]
    return spec


def takes_jobs(backend: KubernetesBackend) -> bool:
    return all(node.takes_jobs for node in backend.observe())


def test_the_lease_names_its_holder_and_is_renewed(trial: Trial, times: None) -> None:
    backend = trial.make()
    assert takes_jobs(backend)
    first = spec_of(trial)
    assert (first["leaseTransitions"], first["leaseDurationSeconds"]) == (0, 3)
    backend.observe()
    second = spec_of(trial)
    assert second["renewTime"] > first["renewTime"]
    assert second | {"renewTime": ""} == first | {"renewTime": ""}


def test_another_installation_starts_nothing_while_one_has_the_namespace(trial: Trial, tmp_path: Path) -> None:
    ours, others, attempt = trial.make(), trial.make("others"), shell_attempt(f"touch {tmp_path}/started")
    assert takes_jobs(ours)
    holder = spec_of(trial)["holderIdentity"]
    assert not takes_jobs(others)
    with pytest.raises(BackendError, match=f"longshore .*{holder}"):
        others.launch(attempt, ONE_GPU)
    assert (others.status(attempt.name).run, trial.cluster.pods()) == (Run.ABSENT, [])
    assert spec_of(trial)["holderIdentity"] == holder


def test_another_installation_takes_the_namespace_once_the_lease_is_not_renewed(trial: Trial, times: None) -> None:
    ours, others, attempt = trial.make(), trial.make("others"), shell_attempt("exec sleep 1000")
    assert takes_jobs(ours)
    holder = spec_of(trial)["holderIdentity"]
    assert not takes_jobs(others)
    until(lambda: takes_jobs(others))
    assert spec_of(trial)["leaseTransitions"] == 1
    assert spec_of(trial)["holderIdentity"] != holder
    others.launch(attempt, ONE_GPU)
    wait_until_running(others, attempt)
    assert not takes_jobs(ours)
    with pytest.raises(BackendError, match="it can be of one installation only"):
        ours.launch(shell_attempt("true"), ONE_GPU)


def test_another_scheduler_of_the_same_installation_goes_on_at_once(trial: Trial) -> None:
    assert takes_jobs(trial.make())
    attempt, another = shell_attempt("exec sleep 1000"), trial.make()
    another.launch(attempt, ONE_GPU)
    wait_until_running(another, attempt)
    assert spec_of(trial)["leaseTransitions"] == 0


def test_of_two_that_take_a_free_lease_at_once_one_has_it(trial: Trial, times: None) -> None:
    """The second reads before the first writes, and writes after it."""
    ours, others = trial.make(), trial.make("others")
    assert takes_jobs(ours)
    trial.cluster.objects.update(KEY, lambda lease: lease | {"spec": lease["spec"] | {"holderIdentity": ""}})
    read = others._api.call

    def late(method: Any, *args: Any, **options: Any) -> Any:
        found = read(method, *args, **options)
        if method.__name__.startswith("read_"):
            assert takes_jobs(ours)
        return found

    others._api.call = late  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="409"):
        others.launch(shell_attempt("true"), ONE_GPU)
    assert trial.cluster.pods() == []


def test_nothing_is_launched_while_the_holder_of_the_lease_is_unknown(trial: Trial) -> None:
    backend = trial.make()
    trial.cluster.server.faults.always("get leases", 500)
    assert not takes_jobs(backend)
    with pytest.raises(BackendError, match="500"):
        backend.launch(shell_attempt("true"), ONE_GPU)
    assert trial.cluster.pods() == []


@pytest.mark.full
def test_a_short_trouble_with_the_lease_holds_nothing_up(trial: Trial, times: None) -> None:
    backend = trial.make()
    assert takes_jobs(backend)
    trial.cluster.server.faults.always("get leases", 500)
    assert takes_jobs(backend)
    until(lambda: not takes_jobs(backend))


def test_why_no_pod_is_started_is_logged_once(trial: Trial, times: None, caplog: pytest.LogCaptureFixture) -> None:
    backend = trial.make()
    trial.cluster.server.faults.always("get leases", 403)
    for _ in range(3):
        backend.observe()
    assert [record.message[:48] for record in caplog.records] == ["no pod is started: the API server answered 403: "]


def test_pods_of_another_installation_are_left_alone(trial: Trial) -> None:
    trial.cluster.schedules = False
    ours, others, attempt = trial.make(), trial.make("others", bind_s=0.01), shell_attempt("true")
    ours.launch(attempt, ONE_GPU)
    for _ in range(3):
        others.statuses(())
        time.sleep(0.05)
    assert [pod["metadata"].get("deletionTimestamp") for pod in trial.cluster.pods()] == [None]


def test_an_installation_keeps_its_name_in_its_folder(trial: Trial, tmp_path: Path) -> None:
    trial.make().observe()
    name = (tmp_path / "scheduler" / "kubernetes" / "installation").read_text()
    assert spec_of(trial)["holderIdentity"].endswith(f"_{name}")


@pytest.mark.full
def test_who_closes_gives_the_namespace_to_another_installation_at_once(trial: Trial) -> None:
    ours, others = trial.make(), trial.make("others")
    assert takes_jobs(ours)
    assert not takes_jobs(others)
    ours.close()
    others.launch(shell_attempt("true"), ONE_GPU)
    spec = spec_of(trial)
    assert (spec["leaseTransitions"], spec["leaseDurationSeconds"]) == (0, 15)
    assert takes_jobs(others)


def test_who_closes_leaves_a_lease_alone_that_another_scheduler_of_its_installation_has_renewed(trial: Trial) -> None:
    standby, leader = trial.make(), trial.make()
    assert takes_jobs(standby)
    assert takes_jobs(leader)
    before = spec_of(trial)
    standby.close()
    assert spec_of(trial) == before


def test_who_never_had_the_lease_gives_none_up(trial: Trial) -> None:
    ours, others = trial.make(), trial.make("others")
    assert takes_jobs(ours)
    assert not takes_jobs(others)
    before = spec_of(trial)
    others.close()
    assert spec_of(trial) == before


def test_a_server_that_does_not_answer_does_not_keep_a_backend_from_closing(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    backend = trial.make()
    assert takes_jobs(backend)
    trial.cluster.server.faults.always("get leases", 503)
    backend.close()
    [reported] = [record.message for record in caplog.records if "lease" in record.message]
    assert "503" in reported


def test_a_scheduler_that_is_stopped_gives_the_namespace_up(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    kind = {"name": "kubernetes", "settings": {"image": "train", "kubeconfig": str(trial.cluster.kubeconfig)}}
    settings = {"cluster": tmp_path / "cluster.yaml", "folder": tmp_path / "served", "backend": kind}
    service = Service(ServeOptions(SchedulerSettings.model_validate(settings)))
    service.lead()
    assert spec_of(trial)["holderIdentity"]
    service.close()
    assert "holderIdentity" not in spec_of(trial)
