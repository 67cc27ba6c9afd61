"""Streams of a real scheduler, which is stopped and killed meanwhile."""

import signal
import threading

import httpx

from longshore.scheduler.client import Client, StreamEvent, events_of

from .served import Served, until


def stream(served: Served, path: str, **headers: str) -> list[StreamEvent]:
    """Return what a stream tells until it ends."""
    with httpx.stream("GET", f"{served.url}{path}", headers={**served.headers, **headers}, timeout=60.0) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        return list(events_of(answer.iter_lines()))


def test_a_log_is_followed_over_a_kill_of_the_scheduler_and_the_next_attempt(served: Served) -> None:
    script = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; test -e again || { touch again; exit 75; }"
    job = served.submit("--", "sh", "-c", script)
    seen: list[str] = []
    follower = threading.Thread(
        target=lambda: seen.extend(Client(served.url, lambda: served.token).follow_logs(job, "0"))
    )
    follower.start()
    until(lambda: bool(seen))

    served.end(signal.SIGKILL)
    (served.folder / "go").touch()
    served.start()
    follower.join(60.0)

    assert "".join(seen) == "one\ntwo\n" * 2


def test_a_log_goes_on_behind_the_last_event_that_was_seen(served: Served) -> None:
    job = served.submit("--", "printf", r"a\303\251b\303")
    served.ended(job)
    path = f"/v1/jobs/{job}/logs?follow=true"

    whole = stream(served, path)
    rest = stream(served, path, **{"Last-Event-ID": "1:0:1"})

    assert [(it.event, it.data.get("text")) for it in whole] == [("log", "aéb"), ("log", "\ufffd"), ("end", None)]
    assert "".join(it.data.get("text", "") for it in rest) == "éb\ufffd"
    assert stream(served, path, **{"Last-Event-ID": whole[-2].id}) == [whole[-1]]


def test_events_are_told_once_each_and_in_order_over_a_kill_of_the_scheduler(served: Served) -> None:
    seen: list[int] = []
    marked = threading.Event()

    def follow() -> None:
        for event in Client(served.url, lambda: served.token).follow_events(0):
            seen.append(int(event["seq"]))
            if event["now"] == "held":
                marked.set()
                return

    follower = threading.Thread(target=follow)
    follower.start()
    jobs = [served.submit("--", "true") for _ in range(2)]
    served.end(signal.SIGKILL)
    served.start()
    for job in jobs:
        served.call("cancel", job)
    last = served.submit("--gpus", "16", "--", "sleep", "1000")
    served.call("hold", last)

    assert marked.wait(60.0)
    follower.join()
    assert seen == list(range(1, len(seen) + 1))


def test_a_stream_ends_when_the_scheduler_is_stopped(served: Served) -> None:
    with httpx.stream("GET", f"{served.url}/v1/events", headers=served.headers, timeout=60.0) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": it goes on"
        served.end()
        assert list(events_of(lines)) == []

    assert "Traceback" not in (served.folder / "serve.log").read_text()
    served.start()
