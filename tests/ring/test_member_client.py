"""A member's waits for its coordinator: none outlasts the ring, whatever message was lost before its end."""

import socket
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from longshore.cluster.files.errors import InputError
from longshore.ring import member_client, wire
from longshore.ring.member import MAX_STEPS, _checked_until
from longshore.ring.member_client import AbortedError, FinishedError, MemberClient


def relieved_trial(client: MemberClient) -> object:
    client.is_relieved = True
    return client.report_trial_step(1.0, 60.0)


WAITS: dict[str, tuple[Callable[[MemberClient], object], type[Exception] | None]] = {
    "layout": (MemberClient.wait_for_layout, FinishedError),
    "trial step": (relieved_trial, FinishedError),
    "ready": (lambda client: client.report_ready(wire.MemberReady(0, 1, 5)), AbortedError),
    "failed exchange": (lambda client: client.report_failed_exchange("1", "reset by peer"), AbortedError),
    "done": (MemberClient.wait_until_done, FinishedError),
    "save": (MemberClient.request_save, None),
}


def test_the_last_state_may_be_saved_once_all_are_done_by_a_member_with_a_seat() -> None:
    client = MemberClient("127.0.0.1:1", "secret", 0, "node", "", 5)
    client._receive(wire.Finish(0))
    with pytest.raises(FinishedError):
        client.wait_until_done()
    assert client.request_save()
    client.close()
    assert client.request_save()


def test_a_member_that_has_left_saves_nothing() -> None:
    client = MemberClient("127.0.0.1:1", "secret", 0, "node", "", 5)
    client.leave("its script ended")
    assert not client.request_save()


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("delay_s", [0.0, 0.1])
def test_no_wait_outlasts_the_ring(name: str, delay_s: float) -> None:
    client = MemberClient("127.0.0.1:1", "secret", 0, "node", "", 5)  # not started: no other message arrives
    finish = threading.Timer(delay_s, client._receive, (wire.Finish(1),))
    wait, error = WAITS[name]
    ended = list[object]()

    def run() -> None:
        try:
            ended.append(wait(client))
        except (AbortedError, FinishedError) as raised:
            ended.append(type(raised))

    thread = threading.Thread(target=run, daemon=True)
    if not delay_s:
        client._receive(wire.Finish(1))
    thread.start()
    if delay_s:
        finish.start()
    thread.join(30.0)
    assert ended == [False if error is None else error]


@pytest.mark.parametrize("until", [10.0, "10", None, np.float32(10)])
def test_a_number_of_steps_is_a_whole_one(until: object) -> None:
    with pytest.raises(InputError, match="whole number"):
        _checked_until(until)  # type: ignore[arg-type]


@pytest.mark.parametrize("until", [0, 7, np.int64(7), np.uint8(7), True, sys.maxsize, 1 << 80, -1, -(1 << 80)])
def test_any_whole_number_of_steps_can_be_sent(until: int) -> None:
    checked = _checked_until(until)
    assert type(checked) is int
    assert checked == max(0, min(int(until), MAX_STEPS))
    beat = wire.Heartbeat(0, 1, 1, 0, until=checked)
    assert wire.decode(wire.encode(beat)) == beat


@pytest.mark.parametrize("error", [TypeError("not serializable"), MemoryError(), RuntimeError("no more threads")])
def test_a_failure_in_the_thread_that_has_the_lease_ends_the_process_with_its_reason(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = list[tuple[int, str]]()
    monkeypatch.setattr(member_client, "end_process", lambda status, reason: ends.append((status, reason)))

    def fail(_: object) -> bool:
        raise error

    monkeypatch.setattr(member_client.Connection, "open", fail)
    client = MemberClient("127.0.0.1:1", "secret", 0, "node", "", 5)
    client.start()
    client._thread.join(30.0)
    assert [status for status, _ in ends] == [member_client.CONNECTION_FAILED_STATUS]
    assert type(error).__name__ in ends[0][1]


def test_a_process_with_many_descriptors_receives_messages(many_descriptors: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = member_client.Connection(f"127.0.0.1:{server.getsockname()[1]}", "secret")
        assert connection.open()
        coordinator, _ = server.accept()
        with coordinator:
            assert coordinator.fileno() > 1024
            challenges = list[wire.Challenge]()
            assert connection.receive(0.0, challenges.append) == []
            coordinator.sendall(wire.encode(wire.new_challenge()))
            while not challenges:
                assert connection.receive(30.0, challenges.append) == []
        connection.close()
