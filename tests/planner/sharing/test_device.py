"""Who has a device that sub-tasks share: one at a time, by the order of passes, and all in the end."""

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import BackendError
from longshore.planner.schedule import Schedule, pass_order
from longshore.planner.sharing import Arbiter, DeviceTurn, PassKind, ReadyPass, SharedDevice, socket_name
from tests.support import processes

PASSES = st.builds(ReadyPass, st.integers(0, 3), st.sampled_from(PassKind), st.integers(0, 3), st.integers(0, 5))
EVENTS = st.lists(st.tuples(st.sampled_from(["want", "done", "gone", "grant"]), st.integers(0, 5), PASSES), max_size=80)


@given(EVENTS)
def test_only_the_first_waiting_sub_task_holds_the_device(events: list[tuple[str, int, ReadyPass]]) -> None:
    device, holder, waiting = SharedDevice(), None, dict[int, ReadyPass]()
    for what, who, it in events:
        if what == "want" and who != holder:
            device.request(who, it)
            waiting[who] = it
        elif what in ("done", "gone"):
            device.release(who)
            waiting.pop(who, None)
            holder = None if holder == who else holder
        granted = device.grant()
        if holder is None and waiting:
            best = min(waiting.values())
            assert isinstance(granted, int)
            assert waiting.pop(granted) == best
            holder = granted
        else:
            assert granted is None
        assert device.holder == holder


def test_backward_comes_before_forward_and_then_the_earliest_micro_batch() -> None:
    passes = [
        ReadyPass(0, PassKind.backward, 1), ReadyPass(0, PassKind.backward, 2),
        ReadyPass(0, PassKind.forward, 0), ReadyPass(0, PassKind.forward, 3),
        ReadyPass(0, PassKind.update), ReadyPass(1, PassKind.backward, 0), ReadyPass(1, PassKind.forward, 0),
    ]  # fmt: skip
    shuffled = passes[3:] + passes[:3]
    assert sorted(shuffled) == passes


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.data())
def test_all_passes_of_a_pipeline_on_one_device_run_and_none_is_overtaken_for_ever(
    stages: int, micro_batches: int, iterations: int, data: st.DataObject
) -> None:
    """Whoever is ready asks when it likes. One that waits in iteration i lets pass only what others have up to i."""
    micro_batches = max(stages, micro_batches)
    queues = [
        deque(
            ReadyPass(at, PassKind.backward if back else PassKind.forward, it, stage)
            for at in range(iterations)
            for back, it in pass_order(Schedule.one_forward_one_backward, stage, stages, micro_batches)
        )
        for stage in range(stages)
    ]
    each = 2 * micro_batches
    device, ran, asked = SharedDevice(), set[ReadyPass](), dict[int, int]()  # when each asked
    while any(queues):
        ready = [k for k in range(stages) if queues[k] and k not in asked and _is_ready(queues[k][0], ran, stages)]
        lazy = data.draw(st.sets(st.sampled_from(ready))) if len(ready) > 1 else set[int]()
        for k in set(ready) - lazy:
            device.request(k, queues[k][0])
            asked[k] = len(ran)
        who = device.grant()
        if who is None:
            continue
        assert isinstance(who, int)
        it = queues[who].popleft()
        assert len(ran) - asked.pop(who) <= each * (it.iteration + 1) * (stages - 1)
        ran.add(it)
        device.release(who)
    assert len(ran) == stages * iterations * each


def _is_ready(it: ReadyPass, ran: set[ReadyPass], stages: int) -> bool:
    before = it.rank - 1 if it.kind is PassKind.forward else it.rank + 1
    return not 0 <= before < stages or it._replace(rank=before) in ran


@pytest.fixture
def arbiter(request: pytest.FixtureRequest) -> Iterator[tuple[str, threading.Thread]]:
    """Return the name of a job, and the thread that serves its device 0."""
    job = f"test-{os.getpid()}-{abs(hash(request.node.name))}"  # no spaces
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_name(job, 0))
        listener.listen()
        thread = threading.Thread(target=Arbiter(job, listener).run, daemon=True)
        thread.start()
        yield job, thread
        thread.join(60.0)
        assert not thread.is_alive()  # it ends with its last sub-task


def test_sub_tasks_take_turns(arbiter: tuple[str, threading.Thread]) -> None:
    turns = [DeviceTurn(arbiter[0], 0, rank, starts=False) for rank in range(3)]
    inside, most, passes = list[int](), list[int](), list[int]()

    def work(rank: int) -> None:
        for at in range(20):
            with turns[rank].hold(at, PassKind.phase):
                inside.append(rank)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.remove(rank)
                passes.append(rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (max(most), sorted(passes)) == (1, sorted([0, 1, 2] * 20))
    for turn in turns:
        turn.close()


HOLDS = """\
import sys, time
from longshore.planner.sharing import DeviceTurn, PassKind
with DeviceTurn(sys.argv[1], 0, 0, starts=False).hold(0, PassKind.forward):
    print("has it", flush=True)
    time.sleep(600)
"""


def test_a_device_is_free_again_when_its_holder_is_killed(arbiter: tuple[str, threading.Thread]) -> None:
    mine = DeviceTurn(arbiter[0], 0, 1, starts=False)
    with processes.start([sys.executable, "-c", HOLDS, arbiter[0]], stdout=processes.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"has it\n"
    with mine.hold(0, PassKind.backward):
        pass
    mine.close()


@pytest.mark.parametrize("message", [b"job another\n", b"want 0 0 0 0\n", b"\n", b"\xff\xfe\n", b"x" * 500, b"done\n"])
def test_another_user_does_not_get_the_device(message: bytes, arbiter: tuple[str, threading.Thread]) -> None:
    mine = DeviceTurn(arbiter[0], 0, 0, starts=False)
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.connect(socket_name(arbiter[0], 0))
        foreign.sendall(message)
        assert foreign.recv(10) == b""
    with mine.hold(0, PassKind.update):
        pass
    mine.close()


@pytest.mark.parametrize("message", [b"want\n", b"want 0 9 0 0\n", b"want a 0 0 0\n", b"give 0 0 0 0\n"])
def test_a_sub_task_that_sends_something_else_is_dropped(message: bytes, arbiter: tuple[str, threading.Thread]) -> None:
    mine = DeviceTurn(arbiter[0], 0, 0, starts=False)
    other = DeviceTurn(arbiter[0], 0, 1, starts=False)
    other._line.sendall(message)
    with pytest.raises(BackendError, match="its arbiter has ended"), other.hold(0, PassKind.forward):
        pass
    other.close()
    with mine.hold(0, PassKind.update):
        pass
    mine.close()


def test_the_first_sub_task_starts_the_arbiter_and_it_ends_with_the_last(request: pytest.FixtureRequest) -> None:
    job = f"own-{request.node.name}"
    first = DeviceTurn(job, 3, 0, starts=True)
    second = DeviceTurn(job, 3, 1, starts=False)
    with second.hold(0, PassKind.forward):
        pass
    second.close()
    with first.hold(0, PassKind.forward):
        pass
    first.close()
    assert first._arbiter is not None
    assert first._arbiter.returncode == 0
