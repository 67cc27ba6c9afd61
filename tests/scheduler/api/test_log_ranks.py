"""Logs of all ranks, of one attempt, and the last lines of them."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.api.logs import AllOutput
from longshore.scheduler.service.service import Service
from longshore.scheduler.store.attempts import attempts_of
from tests.scheduler.served import until

THREE_LINES = "for i in 1 2 3; do echo $RANK.$i; done; printf 'no end'"


@pytest.fixture
def run(api: httpx.Client, service: Service) -> Callable[..., str]:
    """Runs a shell script to its end, and returns the path of its logs."""

    def run(script: str, gpus: int = 1, **spec: object) -> str:
        job = str(api.post("/v1/jobs", json={"command": ["sh", "-c", script], "gpus": gpus, **spec}).json()["id"])

        def is_over() -> bool:
            service.reconciler.tick()
            return api.get(f"/v1/jobs/{job}").json()["ended_s"] is not None

        until(is_over)
        return f"/v1/jobs/{job}/logs"

    return run


def texts(answer: httpx.Response) -> str:
    """Return what a stream sent."""
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith('data: {"text')]
    return "".join(json.loads(line)["text"] for line in lines)


def ids(answer: httpx.Response) -> list[str]:
    return [line.removeprefix("id: ") for line in answer.text.split("\n") if line.startswith("id: ")]


def test_every_line_of_all_ranks_bears_the_number_of_its_rank(api: httpx.Client, run: Callable[..., str]) -> None:
    path = run(THREE_LINES, gpus=3)
    expected = "".join(
        f"[{rank}] {rank}.1\n[{rank}] {rank}.2\n[{rank}] {rank}.3\n[{rank}] no end\n" for rank in range(3)
    )

    assert api.get(path, params={"rank": "all"}).text == expected
    assert texts(api.get(path, params={"rank": "all", "follow": True})) == expected


@pytest.mark.parametrize("follow", [False, True])
def test_the_last_lines_are_those_of_each_rank(api: httpx.Client, run: Callable[..., str], follow: bool) -> None:  # noqa: FBT001
    path = run(THREE_LINES, gpus=2)

    one = api.get(path, params={"rank": 1, "tail": 2, "follow": follow})
    every = api.get(path, params={"rank": "all", "tail": 2, "follow": follow})
    none = api.get(path, params={"rank": 1, "tail": 0, "follow": follow})

    assert [texts(each) if follow else each.text for each in (one, every, none)] == [
        "1.3\nno end", "[0] 0.3\n[0] no end\n[1] 1.3\n[1] no end\n", "",
    ]  # fmt: skip


@pytest.mark.full
def test_a_stream_of_all_ranks_goes_on_where_it_broke_off(api: httpx.Client, run: Callable[..., str]) -> None:
    both_said = "touch said-$RANK; until [ -e said-0 ] && [ -e said-1 ]; do sleep 0.05; done"  # one that fails ends all
    first_fails = "case $LONGSHORE_ATTEMPT in *-1) exit 3;; esac"
    path = run(f"echo $LONGSHORE_ATTEMPT; {both_said}; {first_fails}", gpus=2, retry={"user": 1})
    job = path.split("/")[3]
    whole = api.get(path, params={"rank": "all", "follow": True, "attempt": 1})
    assert texts(whole) == f"[0] ls-{job}-1\n[1] ls-{job}-1\n"
    (first,) = ids(whole)

    on = api.get(path, params={"rank": "all", "follow": True}, headers={"Last-Event-ID": first})
    again = api.get(path, params={"rank": "all", "follow": True}, headers={"Last-Event-ID": "1:all:0,0"})

    assert texts(on) == f"[0] ls-{job}-2\n[1] ls-{job}-2\n"
    assert texts(again) == texts(whole) + texts(on)


def test_an_earlier_attempt_is_read_by_its_number(api: httpx.Client, run: Callable[..., str]) -> None:
    path = run("echo $LONGSHORE_ATTEMPT; case $LONGSHORE_ATTEMPT in *-1) exit 3;; esac", retry={"user": 1})

    shown = [api.get(path, params={"attempt": number}).text[-3:] for number in (1, 2)]

    assert shown == ["-1\n", "-2\n"]
    assert api.get(path, params={"attempt": 3}).json()["code"] == "no-such-attempt"


@pytest.mark.parametrize("lines", [None, 100_000])
def test_ranks_that_are_followed_together_share_the_bytes_of_an_answer(
    service: Service, run: Callable[..., str], lines: int | None
) -> None:
    job = run("seq -f %09g 500", gpus=4).split("/")[3]
    with service.store.read() as tx:
        (attempt,) = attempts_of(tx, job)

    ranks, received = AllOutput(service, [], lines, most_bytes=4000), list[str]()
    while text := ranks.text(attempt, is_over=True):
        received.append(text)

    assert max(len(text.replace("[", "")) for text in received) <= 4000 + 4 * 100 * len("0] ")
    assert "".join(received).count("\n") == 4 * (500 if lines is None else 99)


@pytest.mark.parametrize("unreadable", [(1,), (3,), (0, 2), (0, 1, 2, 3)])
def test_output_is_followed_whole_though_ranks_cannot_be_read_for_a_while(
    service: Service, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, unreadable: tuple[int, ...]
) -> None:
    job = run("seq -f %09g 50", gpus=4).split("/")[3]
    with service.store.read() as tx:
        (attempt,) = attempts_of(tx, job)
    logs, calls = service.backend.logs, Counter[int]()

    def fails_first(name: str, rank: int, offset: int, most: int) -> tuple[bytes, int]:
        calls[rank] += 1
        if rank in unreadable and calls[rank] % 3:
            raise BackendError("its node does not answer")
        return logs(name, rank, offset, most)

    monkeypatch.setattr(service.backend, "logs", fails_first)
    ranks, received = AllOutput(service, [], most_bytes=400), list[str]()
    for _ in range(200):
        with suppress(BackendError):
            received.append(ranks.text(attempt, is_over=True))
    for rank in range(4):
        own = [line for line in "".join(received).splitlines() if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] {number:09}" for number in range(1, 51)]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("parameters", "headers", "code"),
    [
        ({"rank": "all", "offset": 5}, {}, "invalid"),
        ({"tail": 5, "offset": 5}, {}, "invalid"),
        ({"rank": "some"}, {}, "invalid"),
        ({"tail": -1}, {}, "invalid"),
        ({"tail": 10**9}, {}, "invalid"),
        ({"follow": True}, {"Last-Event-ID": "1:all:"}, "bad-header"),
        ({"follow": True}, {"Last-Event-ID": "1:all:5,"}, "bad-header"),
        ({"follow": True}, {"Last-Event-ID": "1:all:0"}, "bad-header"),
        ({"follow": True}, {"Last-Event-ID": "1:1:0"}, "bad-header"),
        ({"rank": "all", "follow": True}, {"Last-Event-ID": "1:0:0"}, "bad-header"),
        ({"rank": "all", "follow": True}, {"Last-Event-ID": "1:all:-5"}, "bad-header"),
    ],
)
def test_what_makes_no_sense_is_refused(
    api: httpx.Client, run: Callable[..., str], parameters: dict[str, object], headers: dict[str, str], code: str
) -> None:
    answer = api.get(run("true"), params=parameters, headers=headers)  # type: ignore[arg-type]
    assert (answer.status_code in (400, 422), answer.json()["code"]) == (True, code)


def test_offsets_of_more_ranks_than_there_are_tell_nothing_more(api: httpx.Client, run: Callable[..., str]) -> None:
    path = run("echo hello")
    headers = {"Last-Event-ID": "1:all:" + ",".join(["0"] * 200)}
    assert texts(api.get(path, params={"rank": "all", "follow": True}, headers=headers)) == "[0] hello\n"


def test_a_failed_attempt_names_the_rank_to_look_at(api: httpx.Client, run: Callable[..., str]) -> None:
    path = run("[ $RANK = 2 ] && exit 5; exec sleep 1000", gpus=3, grace_s=1).removesuffix("/logs")
    well = run("true").removesuffix("/logs")

    (failed,), (good,) = (api.get(job).json()["attempts"] for job in (path, well))
    place = api.get(f"{path}/tasks").json()[2]

    assert failed["crash"] == {"rank": 2, "node": place["node"], "gpu": place["gpu"], "code": 5, "signal": 0}
    assert good["crash"] is None
