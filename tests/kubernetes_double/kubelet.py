"""The double's kubelet: runs the command of a pod as a real process of this machine, and reports how it went.

A container that it does not find it reports as a kubelet does: ended with code 137, `ContainerStatusUnknown`, no times.
Images are names only: those with `no-such-image` cannot be pulled, and those with a blank or a capital letter are no
names. Left out: init containers, probes, restarts, limits of memory and disk, eviction under pressure, volumes other
than empty folders, and pulling, which takes no time.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from longshore.cluster.files.processes import kill, living
from tests.kubernetes_double.objects import ApiError, Key, Object, Objects, is_over, now
from tests.support import processes

_MESSAGE_BYTES = 4096  # of a termination message
_IMAGE = re.compile(r"[a-z0-9]+([._/:@-]+[a-zA-Z0-9_]+)*")  # roughly the grammar of image references
UNLOCATED = {
    "exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None,
    "message": "The container could not be located when the pod was terminated",
}  # fmt: skip


REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Return an argument as a kubelet passes it on: `$$` is `$`, and `$(NAME)` the value of a known variable."""
    return REFERENCE.sub(lambda found: "$" if found[1] is None else environment.get(found[1], found[0]), text)


class Container:
    """A pod's container: a process in a session of its own, whose paths are below a folder.

    Args:
        pod: The pod, with one container.
        folder: Stands for the container's file system.
        gpus: UUIDs of the devices that it was given.
    """

    def __init__(self, pod: Object, folder: Path, gpus: list[str]) -> None:
        self.spec = pod["spec"]["containers"][0]
        self.folder, self.kill_at_s = folder, float("inf")
        self.started = now()
        folder.mkdir(parents=True)
        for mount in self.spec.get("volumeMounts", []):
            (folder / mount["mountPath"].lstrip("/")).mkdir(parents=True)
        self.message = folder / "termination-log"
        environment = {each["name"]: self._inside(each.get("value", "")) for each in self.spec.get("env", [])}
        given = {
            "PATH": os.environ["PATH"],
            "HOSTNAME": pod["metadata"]["name"],
            "NVIDIA_VISIBLE_DEVICES": ",".join(gpus),
        }
        with (folder / "log").open("wb") as log:
            self.process = processes.start(
                [
                    self._inside(expanded(part, environment))
                    for part in (*self.spec["command"], *self.spec.get("args", []))
                ],
                stdin=processes.DEVNULL, stdout=log, stderr=processes.STDOUT, cwd=folder,
                env=given | environment,
            )  # fmt: skip
        self._lines: list[bytes] = []
        self._read = 0

    def _inside(self, text: str) -> str:
        """Return a text in which the container's paths are those below its folder, as if mounted."""
        for mount in self.spec.get("volumeMounts", []):
            # Only where a path begins: a folder of the machine may end in the same words.
            path = re.escape(mount["mountPath"])
            text = re.sub(rf"(?<![\w./-]){path}(?![\w-])", lambda found: f"{self.folder}{found[0]}", text)
        return text.replace("/dev/termination-log", str(self.message) if hasattr(self, "message") else "")

    def log(self) -> bytes:
        """Return the whole lines of its output, each with the time at which it was seen."""
        content = (self.folder / "log").read_bytes()
        whole = content.rfind(b"\n") + 1
        for line in content[self._read : whole].split(b"\n")[:-1]:
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()
            self._lines.append(b"%b %b\n" % (stamp, line))
        self._read = whole
        return b"".join(self._lines)

    def forget_first_lines(self, count: int) -> None:
        """Give up the oldest output, as a node does whose log has grown too large."""
        self.log()
        del self._lines[:count]

    def stop(self, grace_s: float) -> None:
        """Ask it to end, and see to it that it does after the grace."""
        if self.kill_at_s == float("inf"):
            self.kill_at_s = time.monotonic() + grace_s
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    def kill_all(self) -> None:
        """Kill all its processes, as the end of a container does."""
        while left := [process for process in living() if process.session == self.process.pid]:
            for process in left:
                kill(process)
            time.sleep(0.002)
        self.process.wait()

    def ended(self) -> Object | None:
        """Return how it ended as a status has it, None while it runs."""
        if self.process.poll() is None and time.monotonic() < self.kill_at_s:
            return None
        self.kill_all()
        self.log()
        code = self.process.returncode
        message = self.message.read_text(errors="replace")[:_MESSAGE_BYTES] if self.message.exists() else ""
        ended = {
            "exitCode": code if code >= 0 else 128 - code, "reason": "Completed" if code == 0 else "Error",
            "startedAt": self.started, "finishedAt": now(),
        }  # fmt: skip
        return ended | ({"message": message} if message else {})


class Kubelet:
    """The agent of one node.

    Args:
        objects: The cluster's objects.
        node: Its name.
        folder: Where the containers' folders are.
    """

    def __init__(self, objects: Objects, node: str, folder: Path) -> None:
        self.objects, self.node, self.folder = objects, node, folder
        self.containers: dict[str, Container] = {}  # by uid of their pods
        self.alive = True
        self._reboots = threading.Event()

    def step(self) -> None:
        """Start, stop and report what is to be, if the kubelet lives."""
        if not self.alive:
            return
        if self._reboots.is_set():
            for container in self.containers.values():
                container.kill_all()
            self.containers.clear()
            self._reboots.clear()
        for pod in self.objects.each("pods", ""):
            if pod["spec"].get("nodeName") == self.node:
                self._tend(pod)

    def reboot(self) -> None:
        """Let the node start anew at its next step: all containers are gone, and so is what was known of them."""
        self._reboots.set()

    def _tend(self, pod: Object) -> None:
        meta = pod["metadata"]
        key, deleted = ("pods", meta["namespace"], meta["name"]), "deletionTimestamp" in meta
        container = self.containers.get(meta["uid"])
        if is_over(pod):
            if deleted and meta["deletionGracePeriodSeconds"] > 0:
                self._delete(key, meta["uid"])
            return
        if container is None:
            if deleted or _was_running(pod):
                spec = pod["spec"]["containers"][0]
                status = _told(spec, {"terminated": UNLOCATED})
                self._report(key, {"phase": "Failed", "containerStatuses": [status]})
            else:
                self._start(key, pod)
            return
        if deleted:
            container.stop(float(meta["deletionGracePeriodSeconds"]))
        ended = container.ended()
        if ended is not None:
            phase = "Succeeded" if ended["exitCode"] == 0 else "Failed"
            self._report(key, {"phase": phase, "containerStatuses": [_told(container.spec, {"terminated": ended})]})

    def _start(self, key: Key, pod: Object) -> None:
        spec = pod["spec"]["containers"][0]
        if waiting := _no_image(spec["image"]):
            return self._report(key, {"containerStatuses": [_told(spec, {"waiting": waiting})]})
        folder = self.folder / pod["metadata"]["uid"]
        try:
            container = Container(pod, folder, self._gpus(pod))
        except FileNotFoundError as error:
            ended = {"exitCode": 128, "reason": "StartError", "message": str(error), "finishedAt": now()}
            status = _told(spec, {"terminated": ended})
            return self._report(key, {"phase": "Failed", "containerStatuses": [status]})
        self.containers[pod["metadata"]["uid"]] = container
        running = _told(container.spec, {"running": {"startedAt": container.started}})
        return self._report(key, {"phase": "Running", "containerStatuses": [running]})

    def _gpus(self, pod: Object) -> list[str]:
        uuids = {
            (piece["spec"]["pool"]["name"], device["name"]): device["attributes"]["uuid"]["string"]
            for piece in self.objects.each("resourceslices", "")
            for device in piece["spec"]["devices"]
        }
        names = [entry["resourceClaimName"] for entry in pod["spec"].get("resourceClaims", [])]
        claims = [self.objects.get(("resourceclaims", pod["metadata"]["namespace"], name)) for name in names]
        results = [result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]]
        return [uuids[result["pool"], result["device"]] for result in results]

    def _report(self, key: Key, status: Object) -> None:
        def edit(pod: Object) -> Object:
            pod["status"] |= status
            return pod

        with suppress(ApiError):
            self.objects.update(key, edit)

    def _delete(self, key: Key, uid: str) -> None:
        with suppress(ApiError):
            self.objects.delete(key, uid, 0)


def _no_image(image: str) -> Object:
    """Return why a container waits whose image cannot be had, nothing if it can."""
    if not _IMAGE.fullmatch(image):
        message = (
            f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid reference'
        )
        return {"reason": "InvalidImageName", "message": f"{message} format"}
    if "no-such-image" in image:
        return {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}": not found'}
    return {}


def _was_running(pod: Object) -> bool:
    return any("running" in each["state"] for each in pod["status"].get("containerStatuses", []))


def _told(spec: Object, state: Object) -> Object:
    return {
        "name": spec["name"], "image": spec["image"], "imageID": f"sha256:{spec['image']}", "state": state,
        "ready": "running" in state, "restartCount": 0,
    }  # fmt: skip
