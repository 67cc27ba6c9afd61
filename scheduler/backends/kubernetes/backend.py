"""The Kubernetes backend: jobs as pods, one for each node of a placement, on exactly the chosen GPUs."""

import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path

from ....cluster.files.errors import BackendError
from ....cluster.model.placement import Placement
from ...model.gpu_index import Layout
from ...model.states import Run, Status
from ..protocol import Attempt, Backend, Capabilities, GpuView, NodeView
from .api import KubernetesApi, ObjectView
from .launching import HOLD_S, RENEW_S, NamespaceLease, PodStarter
from .objects import (
    ATTEMPT,
    FIRST_RANK,
    PODS,
    RANKS_ANNOTATION,
    KubernetesNode,
    KubernetesPod,
    Offers,
    ResourceSlice,
    gpus_in_order,
    published_gpus,
    updated_gpu_order,
)
from .pods import pod_name
from .reading import AvoidedNodes, PodRemoval, status_of
from .records import COPY_S, BackgroundCopies, PodLogs, RecordFolders
from .settings import KubernetesSettings, blocking_taint

log = logging.getLogger(__name__)

_POD_GROUP_NAME = re.compile(r"ls-[a-z0-9-]{0,55}[a-z0-9]")  # with a dash and the number of a pod, a name of 63


class KubernetesBackend(Backend):
    """Runs each attempt as pods that this backend creates, places, watches and removes.

    Pods and their status are what is known of an attempt, so that any scheduler of the cluster finds them; a
    finalizer keeps them until they are forgotten. The folder holds logs, and records of requests.

    Args:
        folder: Where records and logs of attempts are; created if missing.
        nodes: GPUs of each node, in cluster-file order; the names are those of the cluster.
        settings: What was chosen.
        hold_s: How long its lease of the namespace holds.
        renew_s: After which that is renewed.
        copy_s: Between two copies of a running pod's output.

    Raises:
        InputError: If the client is not installed, or the cluster's address is not known.
    """

    Settings = KubernetesSettings

    @classmethod
    def build(cls, settings: KubernetesSettings, folder: Path, layout: Layout) -> "KubernetesBackend":
        """Return the backend of a scheduler."""
        return cls(folder, layout.nodes, settings)

    def __init__(
        self, folder: Path, nodes: Mapping[str, int], settings: KubernetesSettings, *,
        hold_s: int = HOLD_S, renew_s: float = RENEW_S, copy_s: float = COPY_S,
    ) -> None:  # fmt: skip
        exact = settings.gpus == "claims"
        self.capabilities = Capabilities(exact_gpus=exact, atomic_gang=False, enforced=True)
        self.settings, self._sizes = settings, dict(nodes)
        self._records = RecordFolders(folder / "kubernetes")
        self._api = api = KubernetesApi(settings.kubeconfig, settings.deadline_s)
        namespace = (settings.namespace,)
        self._pods = ObjectView(api, "pods", api.core.list_namespaced_pod, KubernetesPod, namespace, ATTEMPT)
        self._nodes = ObjectView(api, "nodes", api.core.list_node, KubernetesNode)
        self._slices = ObjectView(api, "resource slices", api.resource.list_resource_slice, ResourceSlice)
        installation = self._records.installation_id()
        self._lease = NamespaceLease(api, settings.namespace, installation, hold_s=hold_s, renew_s=renew_s)
        self._starter = PodStarter(api, settings, self._records, self._pods, self._sizes, self._lease)
        self._avoided = AvoidedNodes(len(self._sizes))
        self._removal = PodRemoval(api, settings, self._records, self._avoided)
        self._logs = PodLogs(api, settings.namespace, self._records)
        self._copies = BackgroundCopies(self._logs, self._records.folder, self._pods_to_copy, copy_s)
        self._order = self._records.read_gpu_order()
        self._unschedulable: dict[str, str] = {}  # nodes that take no jobs, and why, as last logged
        self._silent: frozenset[str] = frozenset()  # nodes that did not answer at the last poll
        for view in self._views:
            view.start()
        for view in self._views:
            view.wait_until_fresh(settings.deadline_s)
        self._copies.start()

    def close(self) -> None:
        """Stop to follow the cluster, and release its namespace; jobs continue."""
        try:
            self._lease.release()
        except BackendError as error:
            log.warning("the lease is not released, and ends by itself: %s", error)
        self._copies.close(self._api.deadline_s)
        for view in self._views:
            view.close()
        self._api.close()

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes: a GPU is healthy if its driver offers it without a taint, or does not answer.

        A node that is cordoned or silent, has a taint that pods do not tolerate, or lately did not take a pod takes no
        jobs; none does without the lease of the namespace.
        """
        known, offers, now_s = self._nodes.objects(), self._offered_gpus(), time.time()
        leads = self._lease.renew_if_due()
        self._silent = self._silent_nodes(known, offers)
        gpus, seen, shut = self._gpus_in_kept_order(offers), [], self._unschedulable_nodes(known)
        for node, size in self._sizes.items():
            silent = node in self._silent
            at_s = _last_answered_s(known.get(node)) if silent else now_s
            usable = None if silent or gpus is None else [gpu.usable for gpu in gpus[node]]
            views = [GpuView(gpu, usable is None or (gpu < len(usable) and usable[gpu])) for gpu in range(size)]
            takes_jobs = leads and not silent and node not in shut
            seen.append(NodeView(node, tuple(views), at_s, takes_jobs=takes_jobs))
        return tuple(seen)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Create the pods of an attempt, place them, and let all of them start."""
        _check_name(attempt.name)
        gpus = self._gpus_in_kept_order(self._offered_gpus())
        self._nodes.objects()  # Nothing is started while the nodes cannot be read.
        self._starter.launch(attempt, placement, self._pods_of(attempt.name), gpus)

    def status(self, name: str) -> Status:
        """Return what is known of an attempt."""
        return self.statuses((name,))[name]

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts, and stop the rest of those that have lost a pod."""
        for name in names:
            _check_name(name)
        try:
            by_attempt = _pods_by_attempt(self._pods.objects())
            silent = self._silent | self._silent_nodes(self._nodes.objects(), self._offered_gpus())
        except BackendError as error:
            return {name: Status(Run.UNREACHABLE, words=str(error)) for name in names}
        found = {}
        for name in names:
            try:
                found[name] = self._status_by_pods(name, by_attempt.get(name, []), silent)
            except BackendError as error:  # its records cannot be read: the others are not concerned
                found[name] = Status(Run.UNREACHABLE, words=str(error))
        # Pods of other installations in the namespace stay.
        own = {name: pods for name, pods in by_attempt.items() if name in found or self._records.knows_attempt(name)}
        self._removal.clean_up(own)
        return found

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or as soon as it is launched."""
        _check_name(name)
        if self._records.read_end(name) is None:
            self._records.write_record(name, "cancelled", reason)
            try:
                self._removal.delete_living(self._pods_of(name))
            except BackendError as error:
                log.warning("%s is not cancelled yet: %s", name, error)  # `statuses` tries again.

    def is_proven_gone(self, name: str) -> bool:
        """Return whether all processes of an attempt are proven gone; False where that is not known."""
        _check_name(name)
        try:
            return all(pod.is_over for pod in self._pods_of(name))
        except BackendError:
            return False

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` of a rank's output from an offset on, and the offset after them."""
        _check_name(name)
        if offset < 0 or max_bytes < 0:
            raise ValueError(f"offset {offset} and max_bytes {max_bytes} must not be negative")
        pods = self._pods_of(name)
        pod = next(
            (
                pod
                for pod in pods
                if 0 <= rank - pod.annotated_count(FIRST_RANK) < pod.annotated_count(RANKS_ANNOTATION)
            ),
            None,
        )
        if pod is None:
            return self._logs.read(name, rank, offset, max_bytes, exists=False)
        try:
            self._logs.copy_new(name, pod)
        except BackendError:
            # What was copied before can be read without the node.
            content, end = self._logs.read(name, rank, offset, max_bytes, exists=True)
            if not content:
                raise
            return content, end
        return self._logs.read(name, rank, offset, max_bytes, exists=True)

    def forget(self, name: str) -> None:
        """Delete the pods of an attempt that ended, after copying the rest of their logs."""
        _check_name(name)
        pods = self._pods_of(name)
        if not all(pod.is_over for pod in pods):
            raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
        status = self.status(name)
        if status.run is Run.ABSENT:
            return
        if self._records.read_end(name) is None:
            for pod in pods:
                self._logs.copy_rest(name, pod)
            self._records.write_end(name, status)
        self._removal.remove_ended(pods)

    @property
    def _views(self) -> tuple[ObjectView[KubernetesPod] | ObjectView[KubernetesNode] | ObjectView[ResourceSlice], ...]:
        followed = (self._pods, self._nodes)
        return (*followed, self._slices) if self.capabilities.exact_gpus else followed

    def _offered_gpus(self) -> Offers | None:
        """Return what the drivers of nodes offer; None where GPUs are only counted."""
        if not self.capabilities.exact_gpus:
            return None
        return published_gpus(self._slices.objects().values(), self.settings.device_class)

    def _gpus_in_kept_order(self, offers: Offers | None) -> Offers | None:
        """Return the GPUs of each node by index, in an order that is kept."""
        if offers is None:
            return None
        order = updated_gpu_order(self._order, offers)
        if order != self._order:
            self._records.store_gpu_order(order)
            self._order = order
        return gpus_in_order(order, offers)

    def _silent_nodes(self, known: Mapping[str, KubernetesNode], offers: Offers | None) -> frozenset[str]:
        """Return the nodes that do not answer, that the cluster lacks, or whose driver publishes nothing."""
        answers = {
            name
            for name, node in known.items()
            if node.ready_condition is not None and node.ready_condition.status == "True"
        }
        if offers is not None:
            answers &= set(offers)
        return frozenset(name for name in self._sizes if name not in answers)

    def _unschedulable_nodes(self, known: Mapping[str, KubernetesNode]) -> dict[str, str]:
        """Return the nodes that pods cannot or should not go to, and why."""
        shut = dict.fromkeys(self._avoided.avoided_at(time.monotonic()), "it did not take a pod in time")
        tolerations = self.settings.tolerations()
        for name in self._sizes:
            node = known.get(name)
            if node is None:
                continue
            taint = blocking_taint(node.taints, tolerations)
            if node.unschedulable:
                shut[name] = "it is cordoned"
            elif taint is not None:
                shut[name] = f"pods do not tolerate its taint {taint.key}={taint.value}:{taint.effect}"
        for name in sorted(shut.keys() | self._unschedulable.keys()):
            if shut.get(name) != self._unschedulable.get(name):
                log.warning("node %s takes %s", name, f"no jobs: {shut[name]}" if name in shut else "jobs again")
        self._unschedulable = shut
        return shut

    def _pods_to_copy(self) -> list[tuple[str, KubernetesPod]]:
        """Return the pods of this installation on nodes that answer, each with its attempt."""
        by_attempt = _pods_by_attempt(self._pods.objects())
        own = [(name, pod) for name, pods in by_attempt.items() if self._records.knows_attempt(name) for pod in pods]
        return [(name, pod) for name, pod in own if pod.node not in self._silent]

    def _pods_of(self, name: str) -> list[KubernetesPod]:
        pods = self._pods.objects()
        first = pods.get(pod_name(name, 0))
        if first is None:
            return _pods_by_attempt(pods).get(name, [])
        found = (pods.get(pod_name(name, number)) for number in range(max(first.annotated_count(PODS), 1)))
        return [pod for pod in found if pod is not None and pod.labels[ATTEMPT] == name]

    def _status_by_pods(self, name: str, pods: list[KubernetesPod], silent: frozenset[str]) -> Status:
        if pods:
            cancelled = any(pod.is_being_deleted for pod in pods) and self._records.has_record(name, "cancelled")
            status = status_of(name, pods, silent, cancelled=cancelled)
            # Its pods are deleted one after the other: the status of all of them stays.
            return self._records.read_end(name) or status if status.run in (Run.EXITED, Run.LOST) else status
        return self._records.status_without_pods(name)


def _check_name(name: str) -> None:
    if not _POD_GROUP_NAME.fullmatch(name):
        raise BackendError(f"{name!r} is no name of an attempt: ls-, then 1 to 56 of a-z, 0-9 and -, no - at the end")


def _pods_by_attempt(pods: Mapping[str, KubernetesPod]) -> dict[str, list[KubernetesPod]]:
    found: dict[str, list[KubernetesPod]] = {}
    for pod in pods.values():
        found.setdefault(pod.labels[ATTEMPT], []).append(pod)
    return found


def _last_answered_s(node: KubernetesNode | None) -> float:
    """Return when a node last answered if that is known, else 0."""
    changed = None if node is None or node.ready_condition is None else node.ready_condition.last_transition_time
    return 0.0 if changed is None else changed.timestamp()
