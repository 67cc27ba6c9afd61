"""What the Kubernetes backend does when the API server or the scheduler does not do its part."""

import itertools
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Share
from longshore.scheduler.backends.kubernetes.backend import KubernetesBackend
from longshore.scheduler.backends.kubernetes.records import RecordError
from longshore.scheduler.backends.protocol import CannotHonourError, RefusedError
from longshore.scheduler.model.states import Run
from tests.kubernetes_double.objects import Object
from tests.kubernetes_double.server import CUT, HANG, LOSE
from tests.scheduler.backends.attempts import (
    NODES,
    ONE_GPU,
    THREE_GPUS,
    shell_attempt,
    until,
    wait_for_end,
    wait_until_running,
)
from tests.scheduler.backends.kubernetes_launch import attempt_of
from tests.scheduler.backends.kubernetes_trials import Trial
from tests.support import processes

ROOT = Path(__file__).parents[3]
LAUNCH_CALLS = ("create leases", "create pods", "patch resourceclaims", "patch pods")


@pytest.fixture
def backend(trial: Trial) -> KubernetesBackend:
    return trial.make()


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", [LOSE, 503])
@pytest.mark.parametrize("call", LAUNCH_CALLS)
def test_a_launch_that_was_cut_short_anywhere_is_finished_by_another_scheduler_and_starts_once(
    trial: Trial, backend: KubernetesBackend, tmp_path: Path, call: str, fault: int | str
) -> None:
    attempt = shell_attempt(f"echo $RANK >> {tmp_path}/starts")
    trial.cluster.server.faults.once(call, fault)
    with pytest.raises(BackendError):
        backend.launch(attempt, THREE_GPUS)
    fresh = trial.make()
    fresh.launch(attempt, THREE_GPUS)
    assert [end.code for end in wait_for_end(fresh, attempt).ends] == [0, 0, 0]
    assert sorted((tmp_path / "starts").read_text().split()) == ["0", "1", "2"]


def test_a_claim_that_was_another_pods_is_not_taken(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("true")
    trial.cluster.server.faults.once("patch pods", 503)
    with pytest.raises(BackendError, match="503"):
        backend.launch(attempt, ONE_GPU)

    meta = {"name": "another", "labels": {}}
    spec = {"containers": [{"name": "main", "image": "any"}], "schedulingGates": [{"name": "x"}]}
    another = trial.cluster.objects.create(("pods", "elsewhere", "another"), {"metadata": meta, "spec": spec})

    def of_another(claim: Object) -> Object:
        claim["metadata"]["ownerReferences"][0]["uid"] = another["metadata"]["uid"]
        return claim

    trial.cluster.objects.update(("resourceclaims", "longshore", f"{attempt.name}-0"), of_another)
    with pytest.raises(BackendError, match="another claim"):
        backend.launch(attempt, ONE_GPU)
    assert [len(pod["spec"]["schedulingGates"]) for pod in trial.cluster.pods()] == [1, 1]


@pytest.mark.full
@pytest.mark.parametrize("call", LAUNCH_CALLS)
def test_the_attempt_of_a_scheduler_that_was_killed_while_it_launched_starts_once(
    trial: Trial, tmp_path: Path, call: str
) -> None:
    script = f"echo $RANK >> {tmp_path}/starts"
    trial.cluster.server.faults.once(call, HANG)
    command = [sys.executable, "-m", "tests.scheduler.backends.kubernetes_launch"]
    line = [*command, str(trial.cluster.kubeconfig), str(tmp_path / "scheduler"), script]
    verb, _, resource = call.partition(" ")
    with processes.start(line, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}):
        until(lambda: any((made.verb, made.resource) == (verb, resource) for made in trial.cluster.server.calls))
    trial.cluster.server.faults.lift()
    attempt, fresh = attempt_of(script), trial.make()
    fresh.launch(attempt, THREE_GPUS)
    assert [end.code for end in wait_for_end(fresh, attempt).ends] == [0, 0, 0]
    assert sorted((tmp_path / "starts").read_text().split()) == ["0", "1", "2"]


@pytest.mark.full
def test_every_call_ends_while_the_server_accepts_and_never_answers(trial: Trial) -> None:
    backend = trial.make(deadline_s=0.5)
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    trial.cluster.server.faults.always("*", HANG)
    with pytest.raises(BackendError):
        backend.launch(shell_attempt("true"), ONE_GPU)
    with pytest.raises(BackendError):
        backend.logs(attempt.name, 0, 0, 100)
    backend.cancel(attempt.name, "while it hangs")
    until(lambda: backend.status(attempt.name).run is Run.UNREACHABLE)
    assert not backend.is_proven_gone(attempt.name)
    with pytest.raises(BackendError):
        backend.observe()
    with pytest.raises(BackendError):
        backend.forget(attempt.name)
    trial.cluster.server.faults.lift()
    assert wait_for_end(backend, attempt).reason == "cancelled"


def test_a_server_that_cannot_be_reached_leaves_everything_unknown(trial: Trial) -> None:
    trial.cluster.server.faults.always("*", 503)
    backend = trial.make(deadline_s=0.5)
    assert backend.status(shell_attempt("true").name).run is Run.UNREACHABLE
    assert not backend.is_proven_gone(shell_attempt("true").name)
    trial.cluster.server.faults.lift()
    until(lambda: backend.status(shell_attempt("true").name).run is Run.ABSENT)


def test_nothing_is_launched_while_the_view_may_be_old(trial: Trial) -> None:
    backend = trial.make(deadline_s=0.5)
    for call in ("list pods", "watch pods"):
        trial.cluster.server.faults.always(call, 500)
    until(lambda: backend.status(shell_attempt("true").name).run is Run.UNREACHABLE)
    with pytest.raises(BackendError, match="answered 500"):
        backend.launch(shell_attempt("true"), ONE_GPU)
    assert trial.cluster.pods() == []


def test_nothing_is_launched_while_the_nodes_cannot_be_read(trial: Trial) -> None:
    backend = trial.make(deadline_s=0.5)
    for call in ("list nodes", "watch nodes"):
        trial.cluster.server.faults.always(call, 500)
    until(lambda: backend.status(shell_attempt("true").name).run is Run.UNREACHABLE)
    with pytest.raises(BackendError, match="answered 500"):
        backend.launch(shell_attempt("true"), ONE_GPU)
    assert trial.cluster.pods() == []


@pytest.mark.parametrize("fault", [CUT, 410, 500, 504])
def test_the_view_is_right_again_after_a_stream_that_failed(
    trial: Trial, backend: KubernetesBackend, fault: int | str
) -> None:
    trial.cluster.server.faults.once("watch pods", fault)
    attempt = shell_attempt("exit 4")
    with suppress(BackendError):  # The view may be old at this moment.
        backend.launch(attempt, ONE_GPU)
    until(lambda: backend.status(attempt.name).run is not Run.UNREACHABLE)
    backend.launch(attempt, ONE_GPU)
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [4]


def test_a_version_that_has_expired_is_answered_by_a_list(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("exit 4")
    backend.launch(attempt, ONE_GPU)
    lists = count_of(trial, "list")
    trial.cluster.objects.compact()
    trial.cluster.objects.create(("leases", "elsewhere", "newer"), {"metadata": {}})
    trial.cluster.objects.compact()
    until(lambda: count_of(trial, "list") > lists)
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [4]


@pytest.mark.full
def test_a_restored_server_of_an_older_version_is_believed_after_a_list(trial: Trial) -> None:
    backend = trial.make(deadline_s=0.5)
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    trial.cluster.forget_all_pods(version=7)
    until(lambda: backend.status(attempt.name).run is Run.LOST)


def test_bookmarks_alone_keep_the_view_fresh(trial: Trial) -> None:
    backend = trial.make(deadline_s=0.5)
    lists = count_of(trial, "list")
    watches = count_of(trial, "watch")
    turns = itertools.count()

    def watched_again() -> bool:
        """Let something change that nobody follows, so that only bookmarks tell of newer versions."""
        trial.cluster.objects.create(("leases", "elsewhere", f"lease-{next(turns)}"), {"metadata": {}})
        return count_of(trial, "watch") >= watches + 4

    until(watched_again)
    assert backend.is_proven_gone(shell_attempt("true").name)
    assert count_of(trial, "list") == lists


def count_of(trial: Trial, verb: str) -> int:
    return sum(call.verb == verb for call in trial.cluster.server.calls)


def test_a_pod_that_was_replaced_by_another_of_its_name_is_not_let_go(
    trial: Trial, backend: KubernetesBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt(f"touch {tmp_path}/started")
    trial.cluster.server.faults.once("patch pods", 500)
    with pytest.raises(BackendError):
        backend.launch(attempt, ONE_GPU)
    key = ("pods", "longshore", f"{attempt.name}-0")
    twin = trial.cluster.objects.get(key)
    trial.cluster.server.faults.always("watch pods", HANG)
    trial.cluster.objects.update(key, lambda pod: pod | {"metadata": {**pod["metadata"], "finalizers": []}})
    trial.cluster.objects.delete(key, None, 0)
    twin["metadata"] = {"labels": {}, "annotations": {}}
    trial.cluster.objects.create(key, twin)
    with suppress(BackendError):  # The stream that is open may report it first.
        backend.launch(attempt, ONE_GPU)
    assert trial.cluster.objects.get(key)["spec"]["schedulingGates"]
    assert not (tmp_path / "started").exists()


def test_what_the_server_calls_invalid_is_refused(trial: Trial, backend: KubernetesBackend) -> None:
    trial.cluster.server.faults.once("create pods", 422)
    with pytest.raises(RefusedError, match="422"):
        backend.launch(shell_attempt("true"), ONE_GPU)


@pytest.mark.parametrize("words", ["a quota", "a right"])
def test_what_may_be_granted_in_a_moment_is_no_reason_to_give_an_attempt_up(
    trial: Trial, backend: KubernetesBackend, words: str
) -> None:
    admission = trial.cluster.server.admission
    if words == "a quota":
        admission.most_pods = 0
    else:
        admission.withheld.add(("patch", "resourceclaims"))
    attempt = shell_attempt("true")
    with pytest.raises(BackendError, match="the API server answered 403") as caught:
        backend.launch(attempt, ONE_GPU)
    assert not isinstance(caught.value, RefusedError | CannotHonourError)
    admission.most_pods = None
    admission.withheld.clear()
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)


def test_a_pod_that_its_namespace_forbids_cannot_be_had_with_the_words_of_the_server(trial: Trial) -> None:
    trial.cluster.server.admission.level = "baseline"
    backend = trial.make(pod={"container": {"securityContext": {"privileged": True}}})
    attempt = shell_attempt("true")
    with pytest.raises(CannotHonourError, match="privileged \\(container"):
        backend.launch(attempt, ONE_GPU)
    assert trial.cluster.pods() == []
    backend.cancel(attempt.name, "it is tried again later")
    assert wait_for_end(backend, attempt).reason == "cancelled"


def test_a_container_that_lacks_what_the_settings_name_says_so(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "data" not found'}
    trial.cluster.kubelets["a"].alive = False

    def wait(pod: Object) -> Object:
        pod["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
        return pod

    trial.cluster.objects.update(("pods", "longshore", f"{attempt.name}-0"), wait)
    until(lambda: backend.status(attempt.name).run is Run.PENDING)
    with pytest.raises(BackendError, match='CreateContainerConfigError: secret "data" not found'):
        backend.launch(attempt, ONE_GPU)


def test_a_lost_request_to_cancel_is_sent_again(trial: Trial, backend: KubernetesBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    trial.cluster.server.faults.once("delete pods", 500)
    backend.cancel(attempt.name, "no longer wanted")
    assert wait_for_end(backend, attempt).reason == "cancelled"


def test_a_pod_that_appears_after_its_attempt_was_forgotten_is_removed(
    trial: Trial, backend: KubernetesBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt(f"touch {tmp_path}/started")
    trial.cluster.server.faults.once("create pods", 500)
    with pytest.raises(BackendError):
        backend.launch(attempt, ONE_GPU)
    backend.cancel(attempt.name, "no longer wanted")
    wait_for_end(backend, attempt)
    backend.forget(attempt.name)
    elsewhere = KubernetesBackend(tmp_path / "elsewhere", NODES, backend.settings)
    trial.cluster.server.faults.once("patch pods", 500)
    with pytest.raises(BackendError):
        elsewhere.launch(attempt, ONE_GPU)
    elsewhere.close()
    until(lambda: (backend.statuses(()), trial.cluster.pods() == [])[1])
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("call", ["read_end", "has_record"])
def test_an_attempt_whose_records_cannot_be_read_hides_no_other(
    trial: Trial, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    broken, other = shell_attempt("sleep 600"), shell_attempt("true")
    backend.launch(broken, (Share("b", (1,)),))
    backend.launch(other, ONE_GPU)
    wait_until_running(backend, broken)
    real = getattr(backend._records, call)

    def fails(name: str, *more: str) -> object:
        if name == broken.name:
            raise RecordError(f"{name}: [Errno 5] Input/output error")
        return real(name, *more)

    names = (broken.name, other.name)
    with monkeypatch.context() as broken_disk:
        broken_disk.setattr(backend._records, call, fails)
        until(lambda: backend.statuses(names)[other.name].run is Run.EXITED)
        assert backend.statuses(names)[broken.name].run in (Run.RUNNING, Run.UNREACHABLE)
        backend.forget(other.name)
        until(lambda: backend.statuses(names) and len(trial.cluster.pods()) == 1)  # what is forgotten is removed
    assert backend.status(broken.name).run is Run.RUNNING
    backend.cancel(broken.name, "the test is over")
    wait_for_end(backend, broken)
