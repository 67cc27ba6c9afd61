"""Streams of a real scheduler, which is stopped and killed meanwhile."""

import signal
import threading

import httpx
import pytest

from longshore.scheduler.client import POSITION, Client, ReceivedEvent, parse_events

from .served import Served, until


def stream(served: Served, path: str, **headers: str) -> list[ReceivedEvent]:
    """Return what a stream tells until it ends."""
    with httpx.stream("GET", f"{served.url}{path}", headers={**served.headers, **headers}, timeout=60.0) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        return list(parse_events(answer.iter_bytes()))


def follow_log(served: Served, job: str, seen: list[str]) -> threading.Thread:
    """Follow the log of a job in a thread, until it ends."""
    it = threading.Thread(target=lambda: seen.extend(Client(served.url, lambda: served.token).follow_logs(job, "0")))
    it.start()
    return it


def follow_events(served: Served, seen: list[int], most: str) -> threading.Thread:
    """Follow all events in a thread, until one says that something is now as is reported."""

    def follow() -> None:
        for event in Client(served.url, lambda: served.token).follow_events(0):
            seen.append(int(event["seq"]))
            if event["now"] == most:
                return

    it = threading.Thread(target=follow)
    it.start()
    return it


@pytest.mark.full
def test_over_a_kill_of_the_scheduler_jobs_go_on_and_a_log_and_all_events_are_reported_once_each_and_in_order(
    served: Served,
) -> None:
    script = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; test -e again || { touch again; exit 75; }"
    job = served.add("sh", "-c", script)
    other = served.add("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    waits = served.add("true", gpus=16)
    until(lambda: served.state(other) == "running")
    log, seen = list[str](), list[int]()
    followers = [follow_log(served, job, log), follow_events(served, seen, "held")]
    until(lambda: bool(log and seen))

    served.end(signal.SIGKILL)
    (served.folder / "go").touch()
    served.start()

    assert (served.ended(other), served.ended(waits)) == ("succeeded", "succeeded")
    assert [it["number"] for it in served.ask(f"/v1/jobs/{other}")["attempts"]] == [1]
    last = served.add("sleep", "1000", gpus=16)
    served.call("job", "hold", last)
    for follower in followers:
        follower.join(60.0)
        assert not follower.is_alive()
    assert "".join(log) == "one\ntwo\n" * 2
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.full
def test_a_log_goes_on_behind_the_last_event_that_was_seen(served: Served) -> None:
    job = served.add("printf", r"a\303\251b\303")
    served.ended(job)
    path = f"/v1/jobs/{job}/logs?follow=true"

    whole = stream(served, path)
    rest = stream(served, path, **{"Last-Event-ID": "1:0:1"})

    assert [(it.event, it.data.get("text")) for it in whole] == [("log", "aéb"), ("log", "\ufffd"), ("end", None)]
    assert "".join(it.data.get("text", "") for it in rest) == "éb\ufffd"
    assert stream(served, path, **{"Last-Event-ID": whole[-2].id}) == [whole[-1]]


@pytest.mark.full
def test_a_stream_ends_when_the_scheduler_is_stopped(served: Served) -> None:
    with httpx.stream("GET", f"{served.url}/v1/events", headers=served.headers, timeout=60.0) as answer:
        chunks = answer.iter_bytes()
        assert next(chunks).startswith(b": it goes on")
        served.end()
        assert {event.event for event in parse_events(chunks)} <= {POSITION}

    assert "Traceback" not in (served.folder / "serve.log").read_text()
