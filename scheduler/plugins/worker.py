"""The process in which a policy decides: it follows the cluster, and answers when it is asked."""

import hashlib
import pickle
import socket
import time
from importlib.metadata import version
from pathlib import Path

from ...agents.protocol import Policy
from ...agents.registry import find_policy
from ...cluster.errors import LongshoreError
from ..live import ROW, Asked, Known, LiveCluster, Site
from .answer import Choice, Failed, Ready, Refused
from .frames import receive_frame, send_frame


def version_of(name: str) -> str:
    """Return what tells one version of a policy from another."""
    path = Path(name.rpartition(":")[2].partition("@")[0])
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else f"longshore {version('longshore')}"


def serve(connection: socket.socket, name: str, site: Site, known: Known) -> None:
    """Load a policy and answer questions about a cluster until the connection ends.

    Args:
        connection: To the scheduler. From there come pickled pairs of what has happened and the number of a question,
            0 for none; answers go back as JSON.
        name: Of the policy.
        site: The cluster.
        known: Where it stands.
    """
    try:
        policy = find_policy(name)
        ready = Ready(name=policy.name, version=version_of(name), waits=bool(policy.waits))
        _warm_up(policy, site)
        live = LiveCluster(site, known)
    except Exception as error:
        reason = str(error) if isinstance(error, LongshoreError) else f"{type(error).__name__}: {error}"
        send_frame(connection, Refused(reason=reason).model_dump_json().encode())
        return
    send_frame(connection, ready.model_dump_json().encode())
    while True:
        try:
            told, number = pickle.loads(receive_frame(connection))
        except EOFError:
            return
        live.follow(told)
        if number:
            send_frame(connection, _answer(policy, live, number))


def _answer(policy: Policy, live: LiveCluster, number: int) -> bytes:
    """Return what the policy would do at the decision that is due; the cluster stays as it is."""
    live.due()
    began = time.perf_counter()
    try:
        placed = policy.place(live.sim, ROW)
        job = live.current
        gpus = list(live.picks(job)) if placed else []
        took_s = time.perf_counter() - began
        choice = Choice(number=number, job=job, gpus=gpus, rests=not placed and live.rests, took_s=took_s)
        return choice.model_dump_json().encode()
    except Exception as error:
        return Failed(number=number, reason=f"{type(error).__name__}: {error}").model_dump_json().encode()
    finally:
        live.take_back()


def _warm_up(policy: Policy, site: Site) -> None:
    """Let the policy decide once, so that everything is compiled before it counts."""
    live = LiveCluster(site, Known(0.0))
    for job in ("first", "second"):
        live.submit(Asked(job, 1, 3600.0, 0.0))
        if live.due() is not None and policy.place(live.sim, ROW):
            live.start()
