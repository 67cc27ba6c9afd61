"""Places for streams: taken in one step, given back in every case, and not all to be had by a few."""

import asyncio
import gc
import threading
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.access.tokens import Caller, Role
from longshore.scheduler.api.streaming import MAX_STREAMS, StreamSlots, open_stream
from longshore.scheduler.service.service import Service
from tests.scheduler.served import until

Message = MutableMapping[str, Any]


def fill(slots: StreamSlots, owner: str) -> int:
    taken = 0
    while slots.take(owner):
        taken += 1
    return taken


@given(st.permutations(range(8)))
def test_no_two_owners_take_all_streams(order: list[int]) -> None:
    slots = StreamSlots()

    taken = [fill(slots, f"owner{number}") for number in order]

    assert taken[0] == MAX_STREAMS // 2
    assert taken[0] + taken[1] <= 3 * MAX_STREAMS // 4
    assert all(taken[:6])
    assert sum(taken) <= MAX_STREAMS


def test_two_requests_at_the_same_time_do_not_both_get_the_last_slot() -> None:
    slots, at_once = StreamSlots(), threading.Barrier(8)
    taken: list[object] = []

    def take() -> None:
        at_once.wait()
        taken.extend(slots.take("ada") for _ in range(MAX_STREAMS))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(each is not None for each in taken) == slots.count_open("ada") == MAX_STREAMS // 2


def test_a_place_is_given_back_once() -> None:
    slots = StreamSlots()
    back, kept = slots.take("ada"), slots.take("ada")
    assert back is not None
    assert kept is not None

    back()
    back()

    assert (slots.count_open("ada"), slots.count_open()) == (1, 1)


def stream_of(slots: StreamSlots, service: Service, looks: list[object]) -> Any:
    async def who() -> Caller:
        return Caller("ada", Role.USER)

    def look() -> Any:
        found = looks.pop(0) if looks else None
        if isinstance(found, Exception):
            raise found
        return found

    return open_stream(slots, Caller("ada", Role.USER), who, service, look)


def test_a_stream_that_never_begins_gives_its_place_back(service: Service) -> None:
    slots = StreamSlots()
    stream = stream_of(slots, service, [])
    assert slots.count_open() == 1

    del stream
    gc.collect()

    assert slots.count_open() == 0


@pytest.mark.parametrize("end", ["over", "fault", "sending fails", "client goes", "cancelled"])
def test_a_stream_gives_its_place_back_however_it_ends(service: Service, end: str) -> None:
    slots = StreamSlots()
    polls: dict[str, list[object]] = {"over": [[], None], "fault": [RuntimeError("a fault")]}
    stream = stream_of(slots, service, polls.get(end, [[]] * 10**6))
    began = asyncio.Event()

    async def receive() -> Message:
        await began.wait()
        if end != "client goes":
            await asyncio.sleep(1000.0)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            began.set()
            if end == "sending fails":
                raise OSError("the connection is gone")

    async def answer() -> None:
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        task = asyncio.create_task(stream(scope, receive, send))
        await began.wait()
        if end == "cancelled":
            task.cancel()
        await asyncio.wait([task])
        task.cancelled() or task.exception()

    assert slots.count_open() == 1
    asyncio.run(asyncio.wait_for(answer(), 60.0))
    assert slots.count_open() == 0


def test_where_all_slots_are_taken_the_next_stream_is_refused(api: httpx.Client, app: FastAPI) -> None:
    slots: StreamSlots = app.state.streams
    assert fill(slots, "local")

    answer = api.get("/v1/events")

    problem = answer.json()
    assert (answer.status_code, problem["code"], answer.headers["Retry-After"]) == (429, "too-many-followers", "10")
    assert problem["detail"] == "50 streams are open, 50 of them yours"


def test_a_follower_that_goes_makes_room(api: httpx.Client, app: FastAPI) -> None:
    slots: StreamSlots = app.state.streams
    with api.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()  # the connection is closed with it
        assert next(lines) == ": it goes on"
        assert slots.count_open("local") == 1

    until(lambda: slots.count_open("local") == 0)
