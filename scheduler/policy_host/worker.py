"""The process in which a policy decides: it follows the cluster, and answers questions.

Source: SPEC R8, R12.
"""

import ctypes
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ...agents.learned.schema import USERS, conditions_of_use, training_mismatch
from ...agents.protocol import Policy, RecordingPolicy
from ...agents.registry import ROLLOUT, base_policy_name, checkpoint_in, find_policy
from ...cluster.files.errors import LongshoreError, PluginError
from ...cluster.files.output_file import in_one_line
from ...cluster.files.processes import limit_resource
from ...cluster.model.problem import ORDERS
from ..mirror.cluster_mirror import (
    ROW,
    ClusterMirror,
    ClusterSite,
    JobRequest,
    MirrorCall,
    MirrorOrigin,
    MirrorSnapshot,
)
from ..mirror.rehearsal import rehearse_mirror_calls
from .messages import (
    MAX_REMARK,
    Channel,
    Edition,
    Failed,
    Followed,
    Message,
    PolicyAnswer,
    Ready,
    record_parts_of,
)

MAX_MEMORY_BYTES = 4 << 30  # that the process may allocate
ROLLOUT_SHARE = 0.7  # of the deadline
PR_SET_PDEATHSIG = 1  # of prctl(2)


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message to the process."""

    edition: Edition
    deadline_s: float
    site: ClusterSite
    sample_temperature: float | None = None  # at which it draws what it does; None to choose the best action
    orders: tuple[str, ...] = tuple(ORDERS)  # whose numbers the site's rules have


@dataclass(frozen=True, slots=True)
class DecisionQuestion:
    """A later message to the process."""

    number: int
    calls: Sequence[MirrorCall] = ()  # what has happened since the last one
    snapshot: MirrorSnapshot | None = None  # a new cluster to follow; then there is no question


def main() -> None:
    """Serve the connection whose descriptor is the first argument; the second is the process that has the other end."""
    _confine_process(int(sys.argv[2]))
    with socket.socket(fileno=int(sys.argv[1])) as connection, suppress(ConnectionError):
        serve_policy(Channel(connection, sys.maxsize))


def _confine_process(parent: int) -> None:
    """Die with the scheduler, leave its output alone, and be the first to go where memory is short.

    The system sends the signal once the thread that started this process ends, which therefore lasts.
    """
    os.dup2(2, 1)
    limit_resource(resource.RLIMIT_DATA, MAX_MEMORY_BYTES)
    limit_resource(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if os.getppid() != parent:
        sys.exit("the scheduler has ended")


def serve_policy(channel: Channel) -> None:
    """Load a policy and answer questions about a cluster until the connection ends.

    Args:
        channel: To the scheduler. From there come a pickled Begin and then pickled Questions; answers go back as JSON.
    """
    try:
        begin: Begin = pickle.loads(channel.receive())
        if begin.orders != tuple(ORDERS):
            raise PluginError("other order regimes are installed than when the scheduler started; start it again")
        policy = with_sampling(load_policy(begin.edition), begin.sample_temperature)
        if begin.edition.name.startswith(ROLLOUT):
            limit_search_time(policy, begin.deadline_s)
        remark = in_one_line(training_mismatch(policy, conditions_of_use(begin.site.rules, USERS)))[:MAX_REMARK]
        ready = Ready(name=policy.name, waits=bool(policy.waits), remark=remark)
        _warm_up(policy, begin.site)
    except EOFError:
        return
    except Exception as error:
        reason = str(error) if isinstance(error, LongshoreError) else f"{type(error).__name__}: {error}"
        channel.send(Failed(reason=reason).model_dump_json().encode())
        return
    channel.send(ready.model_dump_json().encode())
    with suppress(EOFError):
        _answer_questions(channel, policy, ClusterMirror(begin.site, MirrorOrigin(0.0)))


def _answer_questions(channel: Channel, policy: Policy, mirror: ClusterMirror) -> NoReturn:
    observing = policy if isinstance(policy, RecordingPolicy) else None
    while True:
        question: DecisionQuestion = pickle.loads(channel.receive())
        if question.snapshot is not None:
            mirror = ClusterMirror.from_snapshot(question.snapshot)
            answer: Message = Followed(number=question.number)
        else:
            mirror.apply_calls(question.calls)
            answer = _answer_question(policy, observing, mirror, question.number)
        channel.send(answer.model_dump_json().encode())


def load_policy(edition: Edition) -> Policy:
    """Return a policy, from the bytes of its checkpoint if it has one."""
    path = checkpoint_in(edition.name)
    if path is None or edition.content is None:
        return find_policy(edition.name)
    with tempfile.TemporaryDirectory(prefix="longshore-") as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(edition.content)
        try:
            return find_policy(edition.name.replace(base_policy_name(edition.name), str(copy)))
        except LongshoreError as error:
            raise type(error)(str(error).replace(str(copy), str(path))) from error


def with_sampling(policy: Policy, temperature: float | None) -> Policy:
    """Return a policy that draws what it does at a temperature, or as it is without one.

    Raises:
        PluginError: If it is not made for that.
    """
    if temperature is None:
        return policy
    from ...agents.learned.network import LearnedPolicy  # it imports PyTorch, which takes seconds

    if not isinstance(policy, LearnedPolicy):
        raise PluginError(
            f"policy {policy.name!r} cannot be sampled; take a checkpoint (NAME.zip), or leave sample_temperature out"
        )
    return policy.with_drawn_actions(temperature)


def limit_search_time(policy: Policy, deadline_s: float) -> None:
    """Let rollouts stop trying in time; a try that has begun runs to its end."""
    from ...agents.rollouts import Rollout  # it imports PyTorch, which takes seconds

    assert isinstance(policy, Rollout)
    policy.search = replace(policy.search, budget_s=min(policy.search.budget_s, ROLLOUT_SHARE * deadline_s))


def _answer_question(
    policy: Policy, observing: RecordingPolicy | None, mirror: ClusterMirror, number: int
) -> PolicyAnswer | Failed:
    """Return what the policy would do at the decision that is due; the cluster stays as it is."""
    mirror.find_due_job()
    began = time.perf_counter()
    try:
        placed = policy.place(mirror.sim, ROW)
        job = mirror.current_job
        gpus = list(mirror.gpus_of_job(job)) if placed else []
        took_s = time.perf_counter() - began
        record = None if observing is None else record_parts_of(observing.last_decision())
        return PolicyAnswer(
            number=number, job=job, gpus=gpus, rests=not placed and mirror.all_jobs_wait, took_s=took_s, record=record
        )
    except Exception as error:
        return Failed(number=number, reason=f"{type(error).__name__}: {error}")
    finally:
        mirror.undo_picks()


def _warm_up(policy: Policy, site: ClusterSite) -> None:
    """Let the policy decide once, and all happen once, so that everything is compiled before it counts."""
    rehearse_mirror_calls()
    mirror = ClusterMirror(site, MirrorOrigin(0.0))
    for job in ("first", "second"):
        mirror.submit(JobRequest(job, 1, 3600.0, 0.0))
        if mirror.find_due_job() is not None and policy.place(mirror.sim, ROW):
            mirror.start_current_job()
