"""The Lease object of a namespace: only one installation starts pods there.

Who leads among the schedulers of one store is said by the store. This keeps those of two stores apart, which know
nothing of each other, and tells `kubectl get leases` who schedules.

Source: SPEC K7; the rules are those of client-go's leader election.
"""

import logging
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import Field

from ....cluster.files.errors import BackendError
from .api import MANAGER, AnswerError, Api, Json
from .objects.objects import Read

log = logging.getLogger(__name__)

NAME = "longshore"
HOLD_S = 15  # for which a lease is good
RENEW_S = 5.0  # after which it is renewed
_MISSING = 404
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True)
class LeadTimes:
    """Of a lease."""

    hold_s: int = HOLD_S
    renew_s: float = RENEW_S


LEAD_TIMES = LeadTimes()


class _Spec(Read):
    """Who holds the lease."""

    holder_identity: str = ""
    lease_duration_seconds: int = Field(default=HOLD_S, ge=1)
    lease_transitions: int = 0
    acquire_time: str = ""
    renew_time: str = ""

    @property
    def renewed(self) -> datetime | None:
        """When it was renewed, however that is written; None if that is no time."""
        try:
            return datetime.fromisoformat(self.renew_time)
        except ValueError:
            return None


class Lead:
    """Holds the lease while somebody looks at the cluster through this backend.

    Args:
        api: Where it is.
        namespace: Of the pods.
        installation: What all schedulers with this folder have in common, and no others.
        times: For how long it is good, and when it is renewed.
    """

    def __init__(self, api: Api, namespace: str, installation: str, times: LeadTimes = LEAD_TIMES) -> None:
        self._api, self._namespace, self._installation, self._times = api, namespace, installation, times
        self._held_s = self._asked_s = float("-inf")  # by the clock that nobody sets
        self._seen, self._seen_s = _Spec(), 0.0  # what others wrote last, and when that was noticed
        self._told = ""  # why it is not held, as it was last logged
        self._wrote = _Spec()  # by this process, the last time

    def keep(self) -> bool:
        """Take or renew the lease if it is time to, and say whether it is held; why not is logged once."""
        if time.monotonic() >= self._asked_s + self._times.renew_s:
            try:
                self._take()
                self._told = ""
            except BackendError as error:
                if str(error) != self._told:
                    log.warning("no pod is started: %s", error)
                self._told = str(error)
            self._asked_s = time.monotonic()  # A call that hangs is not made again at once.
        return time.monotonic() < self._held_s + self._times.hold_s

    def hold(self) -> None:
        """Make sure that the lease is held.

        Raises:
            BackendError: If it is another's, or that is not known.
        """
        if time.monotonic() > self._held_s + self._times.renew_s:
            self._take()

    def give_up(self) -> None:
        """Let others have the lease at once, unless somebody else has renewed it: of this installation or another.

        Raises:
            BackendError: If nobody knows whether others have it.
        """
        api = self._api
        if time.monotonic() >= self._held_s + self._times.hold_s:
            return
        self._held_s = float("-inf")
        lease = api.call(api.coordination.read_namespaced_lease, NAME, self._namespace)
        found = _Spec.model_validate(lease.get("spec") or {})
        if (found.holder_identity, found.renewed) == (self._wrote.holder_identity, self._wrote.renewed):
            now = datetime.now(UTC).strftime(_TIME)
            lease["spec"] |= {"leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
            del lease["spec"]["holderIdentity"]
            api.call(api.coordination.replace_namespaced_lease, NAME, self._namespace, lease, field_manager=MANAGER)

    def _take(self) -> None:
        api, begin_s = self._api, time.monotonic()
        try:
            lease = api.call(api.coordination.read_namespaced_lease, NAME, self._namespace)
        except AnswerError as error:
            if error.code != _MISSING:
                raise
            lease = {"metadata": {"name": NAME}, "spec": self._ours(_Spec())}
            api.call(api.coordination.create_namespaced_lease, self._namespace, lease, field_manager=MANAGER)
        else:
            seen = _Spec.model_validate(lease.get("spec") or {})
            if not self._is_ours(seen) and self._lasts(seen):
                raise BackendError(
                    f"namespace {self._namespace} is that of {seen.holder_identity}: it can be of one installation only"
                )
            # With the version that was just read: whoever was faster has it.
            lease["spec"] = self._ours(seen)
            api.call(api.coordination.replace_namespaced_lease, NAME, self._namespace, lease, field_manager=MANAGER)
        self._held_s, self._wrote = begin_s, _Spec.model_validate(lease["spec"])

    def _is_ours(self, spec: _Spec) -> bool:
        return spec.holder_identity.endswith(f"_{self._installation}")

    def _lasts(self, spec: _Spec) -> bool:
        """Say whether another's lease still counts, by how long ago we saw it change: clocks differ."""
        if spec != self._seen:
            self._seen, self._seen_s = spec, time.monotonic()
        return bool(spec.holder_identity) and time.monotonic() < self._seen_s + spec.lease_duration_seconds

    def _ours(self, before: _Spec) -> Json:
        now, me = datetime.now(UTC).strftime(_TIME), f"{socket.gethostname()}_{self._installation}"
        stays = before.holder_identity == me
        return {
            "holderIdentity": me,
            "leaseDurationSeconds": self._times.hold_s,
            "leaseTransitions": before.lease_transitions + (0 if stays or not before.holder_identity else 1),
            "acquireTime": (stays and before.acquire_time) or now,
            "renewTime": now,
        }
