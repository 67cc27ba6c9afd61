"""Pods and nodes as the Kubernetes API shows them: listed once, then followed.

Source: SPEC K1; docs/kubernetes.md.
"""

import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from .inventory import HeldGpus, request_of
from .ranking import Ranker
from .wire import OfferedNode, OfferedPod

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FOLLOW_S = 300  # length of a watch, which the next one continues


@dataclass(frozen=True, slots=True)
class KubernetesAddress:
    """Where the Kubernetes API is.

    Args:
        url: Its address.
        account: Folder of a service account's token and certificate; None where neither is needed.
    """

    url: str
    account: Path | None = None

    def open_client(self) -> httpx.Client:
        """Return a client; its token is read again for each, as Kubernetes replaces it every hour."""
        limits = httpx.Timeout(10.0, read=FOLLOW_S + 30.0)
        if self.account is None:
            return httpx.Client(base_url=self.url, timeout=limits)
        token = (self.account / "token").read_text(encoding="ascii").strip()
        verify = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, timeout=limits, headers=headers, verify=verify)


log = logging.getLogger(__name__)

OBJECTS_PER_LIST = 500  # objects in one answer to a list
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0  # after a failure, doubled with each
WATCH_PAUSE_S = 0.1  # between two watches, should something end them at once
HTTP_GONE = 410  # the version of a watch is no longer kept
# Ended pods hold nothing; a pod that ends leaves the selection, which the API reports as a deletion.
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"


class StaleError(Exception):
    """The watched version is no longer available; list again."""


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """One kind of objects, and the functions that take them."""

    path: str
    selector: str
    replace: Callable[[list[Mapping[str, Any]]], None]  # all at once
    change: Callable[[str, Mapping[str, Any]], None]  # ADDED, MODIFIED or DELETED, and the object


class ObjectWatch:
    """Follows pods and nodes in threads of their own, and keeps a ranker's ledger and inventory up to date."""

    def __init__(self, api: KubernetesAddress, ranker: Ranker) -> None:
        self._api, self._ranker = api, ranker
        self._ends = threading.Event()
        kinds = (
            WatchedKind("/api/v1/nodes", "", self._replace_nodes, self._change_node),
            WatchedKind("/api/v1/pods", RUNNING, self._replace_pods, self._change_pod),
        )
        self._synced = {kind.path: threading.Event() for kind in kinds}
        self._clients: dict[str, httpx.Client] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(kind,), name=f"watch {kind.path}", daemon=True)
            for kind in kinds
        ]  # fmt: skip

    def start(self) -> None:
        """Begin to follow."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop following."""
        self._ends.set()
        for client in list(self._clients.values()):
            client.close()

    @property
    def is_in_sync(self) -> bool:
        """Whether all pods and nodes are known, and changes arrive."""
        return all(event.is_set() for event in self._synced.values())

    def _update_is_watched(self) -> None:
        with self._ranker.locked():
            self._ranker.ledger.is_watched = self.is_in_sync

    def _follow(self, kind: WatchedKind) -> None:
        rest_s = FIRST_REST_S
        while not self._ends.is_set():
            try:
                with self._api.open_client() as client:
                    self._clients[kind.path] = client
                    version = self._list(client, kind)
                    self._synced[kind.path].set()
                    self._update_is_watched()
                    rest_s = FIRST_REST_S
                    while not self._ends.wait(WATCH_PAUSE_S):
                        version = self._watch(client, kind, version)
            except StaleError:
                log.info("%s: listing again", kind.path)
                self._ends.wait(FIRST_REST_S)
            except Exception as error:
                # Any error: a watch that ended for good would leave a wrong view for ever.
                if self._ends.is_set():
                    return
                log.warning("%s: %s; the next try in %.0f s", kind.path, error, rest_s)
                self._synced[kind.path].clear()
                self._update_is_watched()
                self._ends.wait(rest_s)
                rest_s = min(2.0 * rest_s, LONGEST_REST_S)

    def _list(self, client: httpx.Client, kind: WatchedKind) -> str:
        """List all objects, and return the version from which to watch them."""
        found: list[Mapping[str, Any]] = []
        parameters = {"limit": str(OBJECTS_PER_LIST), **({"fieldSelector": kind.selector} if kind.selector else {})}
        while True:
            page = _read_object(client.get(kind.path, params=parameters))
            found += page.get("items") or []
            metadata = page["metadata"]
            if not metadata.get("continue"):
                kind.replace(found)
                return str(metadata["resourceVersion"])
            parameters["continue"] = metadata["continue"]

    def _watch(self, client: httpx.Client, kind: WatchedKind, version: str) -> str:
        """Follow changes until the API ends the watch, and return the version from which to continue."""
        parameters = {
            "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(FOLLOW_S),
            **({"fieldSelector": kind.selector} if kind.selector else {}),
        }  # fmt: skip
        with client.stream("GET", kind.path, params=parameters) as answer:
            if answer.status_code == HTTP_GONE:
                raise StaleError
            answer.raise_for_status()
            for event, changed in _parse_events(answer.iter_lines()):
                version = str(changed["metadata"]["resourceVersion"])
                if event != "BOOKMARK":
                    kind.change(event, changed)
        return version

    def _replace_pods(self, objects: list[Mapping[str, Any]]) -> None:
        found = dict(filter(None, map(_parse_holding, objects)))
        with self._ranker.locked():
            ledger = self._ranker.ledger
            ledger.known = found
            for uid in found:
                ledger.drop_assumption(uid)

    def _change_pod(self, event: str, changed: Mapping[str, Any]) -> None:
        uid, found = str(changed["metadata"]["uid"]), _parse_holding(changed)
        with self._ranker.locked():
            ledger = self._ranker.ledger
            if found is not None and event != "DELETED":
                ledger.known[uid] = found[1]
                ledger.drop_assumption(uid)
            else:
                ledger.known.pop(uid, None)
                if event == "DELETED":
                    ledger.drop_assumption(uid)

    def _replace_nodes(self, objects: list[Mapping[str, Any]]) -> None:
        with self._ranker.locked():
            self._ranker.inventory.replace(_parse_nodes(objects))

    def _change_node(self, event: str, changed: Mapping[str, Any]) -> None:
        with self._ranker.locked():
            if event == "DELETED":
                self._ranker.inventory.forget(str(changed["metadata"]["name"]))
            else:
                self._ranker.inventory.update(_parse_nodes([changed]))


def _read_object(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code == HTTP_GONE:
        raise StaleError
    answer.raise_for_status()
    value = answer.json()
    if not isinstance(value, dict):
        raise ValueError("the answer of the Kubernetes API is no object")
    return value


def _parse_events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in lines:
        if not line:
            continue
        event = json.loads(line)
        if event["type"] == "ERROR":
            # Mostly 410 again, within a stream.
            raise StaleError
        yield event["type"], event["object"]


def _parse_nodes(objects: list[Mapping[str, Any]]) -> list[OfferedNode]:
    return [OfferedNode.model_validate(each) for each in objects]


def _parse_holding(found: Mapping[str, Any]) -> tuple[str, HeldGpus] | None:
    """Return what a pod holds, by its uid; None if that is nothing."""
    pod = OfferedPod.model_validate(found)
    request, since_s = request_of(pod), pod.status.accepted_s or time.time()
    if not pod.spec.nodeName or not request.gpus or pod.status.phase in ("Succeeded", "Failed"):
        return None
    return request.uid, HeldGpus(pod.spec.nodeName, request.gpus, request.group, since_s, request.estimate_s)
