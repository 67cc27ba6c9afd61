"""Pages of a scheduler that does not run, over a store with what they show."""

import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import httpx
import pytest

from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Share
from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.backends.protocol import NoLogError
from longshore.scheduler.dashboard.rendering import HEADERS, DashboardPage
from longshore.scheduler.dashboard.rendering import PAGES as LINKED
from longshore.scheduler.model.states import Desired
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.queue_now import why_jobs_wait
from longshore.scheduler.store.attempts import CheckpointRow, NewDecision, store_checkpoint
from longshore.scheduler.store.events import last_seq
from longshore.scheduler.store.jobs import get_job, set_desired
from longshore.scheduler.store.transitions import Changes
from tests.scheduler.dashboard.shown import HOSTILE, Shown

PAGES = (
    "/",
    "/jobs",
    "/policy",
    "/events",
    "/jobs/none",
    "/parts/cluster",
    "/parts/events",
    "/parts/jobs",
    "/parts/policy",
)


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    it = Shown(tmp_path)
    yield it
    it.service.close()


class Tags(HTMLParser):
    """Collects what a page must not hold, and what it links to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        if tag == "style" or "style" in named or (tag == "script" and "src" not in named):
            self.inline.append(tag)
        self.inline += [name for name in named if name.startswith(("on", "hx-on"))]
        self.addresses += [named[name] or "" for name in ("src", "href", "hx-get", "action") if name in named]


@pytest.mark.anyio
async def test_a_page_keeps_to_its_own_origin(shown: Shown) -> None:
    job = shown.submit()
    shown.start(job)

    for path in (*PAGES, f"/jobs/{job.id}", f"/parts/jobs/{job.id}"):
        answer = await shown.get(path)

        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        tags = Tags(answer.text)
        assert tags.inline == []
        assert all(re.match(r"/(?!/)|#", address) for address in tags.addresses)


@pytest.mark.anyio
async def test_what_a_job_wrote_is_shown_as_text(shown: Shown) -> None:
    job = shown.submit()
    shown.start(job)
    shown.write_log(job, b"\x1b[31m" + HOSTILE.encode() + b"\x1b[0m\n")

    page = (await shown.get(f"/jobs/{job.id}")).text
    part = (await shown.get(f"/parts/jobs/{job.id}/logs?attempt=1&rank=0&offset=0")).text

    for text in (page, part):
        assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;\n" in text
        assert "<script>alert" not in text
        assert "\x1b" not in text


@pytest.mark.anyio
async def test_gpus_lead_to_the_job_that_holds_them(shown: Shown) -> None:
    job = shown.submit()
    shown.start(job)

    page = (await shown.get("/")).text

    (block,) = re.findall(r'<a id="g[^>]*>', page)
    assert f'href="/jobs/{job.id}"' in block
    assert 'aria-label="GPUs 0 to 1: starting, job trains"' in block
    assert page.count("<i>S</i>") == 2 + 1  # one in the legend


@pytest.mark.anyio
async def test_a_part_is_sent_only_if_something_is_new(shown: Shown) -> None:
    page = (await shown.get("/parts/cluster")).text
    (address,) = re.findall(r'hx-get="([^"]*)"', page)
    assert (await shown.get(address)).status_code == 204

    shown.submit("newcomer")

    answer = await shown.get(address)
    assert answer.status_code == 200
    assert "newcomer" in answer.text


@pytest.mark.anyio
async def test_output_is_followed_from_where_it_was_read(shown: Shown) -> None:
    job = shown.submit()
    shown.start(job)
    shown.write_log(job, b"one\n")
    page = (await shown.get(f"/jobs/{job.id}")).text
    address = re.findall(r'id="log-more" hx-get="([^"]*)"', page)[0].replace("&amp;", "&")
    assert (await shown.get(address)).status_code == 204

    with (shown.folder / "attempts" / f"ls-{job.id}-1" / "rank-0.log").open("ab") as log:
        log.write(b"two\n")

    assert (await shown.get(address)).text.startswith("two\n<span")


def asks_again(page: str) -> list[str]:
    """Return what the part of a page that is for the output asks for every second."""
    return re.findall(r'id="output-section"[^>]* hx-get="([^"]*)"', page)


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["?rank=0", "?attempt=1&rank=0", "?attempt=1&rank=1"])
async def test_a_page_of_an_attempt_that_is_being_launched_looks_for_its_output_again(shown: Shown, query: str) -> None:
    job = shown.submit()
    shown.start(job)

    launched = (await shown.get(f"/jobs/{job.id}{query}")).text
    assert asks_again(launched) == [f"/jobs/{job.id}{query}".replace("&", "&amp;")]
    assert "It has not started yet." in launched
    shown.write_log(job, b"one\n", rank=int(query[-1]))

    followed = (await shown.get(f"/jobs/{job.id}{query}")).text
    assert asks_again(followed) == []
    assert "one\n" in followed


@pytest.mark.anyio
async def test_a_page_looks_for_the_next_attempt_where_the_last_one_left_no_output(shown: Shown) -> None:
    job = shown.submit()
    assert asks_again((await shown.get(f"/jobs/{job.id}")).text) == [f"/jobs/{job.id}?rank=0"]
    shown.start(job)
    shown.release(job)

    assert asks_again((await shown.get(f"/jobs/{job.id}")).text) == [f"/jobs/{job.id}?rank=0"]
    assert asks_again((await shown.get(f"/jobs/{job.id}?attempt=1")).text) == []  # none of this one will come
    assert asks_again((await shown.get(f"/jobs/{job.id}?attempt=7")).text) == []


@pytest.mark.anyio
async def test_a_page_looks_again_where_the_output_cannot_be_seen_now_but_not_for_a_rank_that_there_is_not(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shown.submit()
    shown.start(job)
    shown.runs(job)

    for error, again in ((BackendError("no answer"), [f"/jobs/{job.id}?rank=5"]), (NoLogError("no rank 5"), [])):
        monkeypatch.setattr(shown.service.backend, "logs", mock.Mock(side_effect=error))
        page = (await shown.get(f"/jobs/{job.id}?rank=5")).text
        assert str(error) in page
        assert asks_again(page) == again


@pytest.mark.anyio
async def test_output_of_an_attempt_that_another_one_followed_comes_to_an_end(shown: Shown) -> None:
    job = shown.submit()
    shown.start(job)
    shown.write_log(job, b"one\n")
    shown.try_again(job)

    part = (await shown.get(f"/parts/jobs/{job.id}/logs?attempt=1&rank=0&offset=4")).text

    assert "log-more" not in part
    assert "attempt 2 has begun" in part


@pytest.mark.anyio
async def test_what_is_not_there_is_not_found(shown: Shown) -> None:
    for path in (
        "/jobs/none", f"/jobs/{'0' * 26}", "/jobs/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/parts/jobs/none",
        "/static/router.py", "/static/%2e%2e%2frouter.py", f"/parts/jobs/{'0' * 26}/logs?attempt=1&rank=0&offset=0",
    ):  # fmt: skip
        assert (await shown.get(path)).status_code == 404, path


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["attempt=9", "rank=5"])
async def test_a_page_says_which_output_there_is_not(shown: Shown, query: str) -> None:
    job = shown.submit()
    shown.start(job)

    answer = await shown.get(f"/jobs/{job.id}?{query}")

    assert answer.status_code == 200
    assert 'id="log"' not in answer.text


@pytest.mark.anyio
async def test_static_files_are_kept_by_browsers_and_never_change_under_an_address(shown: Shown) -> None:
    page = (await shown.get("/")).text
    addresses = set(re.findall(r'"(/static/[^"]+)"', page))
    assert {address.split("?")[0].rsplit(".", 1)[1] for address in addresses} == {"css", "js", "svg", "woff2"}

    for address in addresses:
        answer = await shown.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["Cache-Control"]


def decided(job: str, told: Mapping[str, object], mode: str = "active") -> NewDecision:
    """Return a decision to wait where the heuristic would have started the job."""
    fallback = (Share("rack0-node0", (0, 1)),)
    return NewDecision(job, None, 1e9, "learned", "1", mode, None, fallback, told, None, None, None, None, 0.1)


@pytest.mark.anyio
async def test_a_decision_shows_what_decided_and_why_the_policy_did_not(shown: Shown) -> None:
    job = shown.submit()
    received = {
        "decided_by": "patient",
        "fallback": "patient",
        "policy_error": "no decision within 100 ms",
        "agrees": None,
    }
    shown.write(Changes(decisions=[decided(job.id, received)]))

    page = (await shown.get(f"/jobs/{job.id}")).text

    assert "no decision within 100 ms" in page
    assert "rack0-node0: 0-1" in page


@pytest.mark.anyio
@pytest.mark.parametrize("mine", [True, False])
async def test_a_policy_on_trial_shows_what_it_would_do_beside_what_is_done(tmp_path: Path, *, mine: bool) -> None:
    shown = Shown(tmp_path, "eft")
    job, other = shown.submit(), shown.submit("other")
    received = {
        "decided_by": "patient", "fallback": "patient", "policy_error": "", "agrees": False, "probability": 0.83,
        "options": 7,
        "proposal": {"job": job.id if mine else other.id, "gpus": [4, 5], "rests": False},
        "proposal_placement": [{"node": "rack0-node1", "gpus": [0, 1]}],
        "proposal_expected": {"slowdown": 0.9, "end_s": 2e9},
    }  # fmt: skip
    shown.write(Changes(decisions=[decided(job.id, received, "shadow")]))

    for address in (f"/jobs/{job.id}", "/policy"):
        page = (await shown.get(address)).text
        assert "rack0-node1: 0-1" in page
        assert "0.90 x its estimate" in page
        assert "83 % sure among 7 moves" in page
        assert "differs" in page
        assert ("another job" in page) is not mine
    shown.service.close()


@pytest.mark.anyio
async def test_a_heuristic_that_decided_about_another_job_shows_which(shown: Shown) -> None:
    job, other = shown.submit(), shown.submit("other")
    received = {"decided_by": "learned", "fallback": "patient", "fallback_job": other.id, "agrees": False}
    shown.write(Changes(decisions=[decided(job.id, received)]))

    for address in (f"/jobs/{job.id}", "/policy"):
        page = (await shown.get(address)).text
        assert f'<a href="/jobs/{other.id}">another job</a>: rack0-node0: 0-1' in page


@pytest.mark.anyio
async def test_jobs_are_turned_over_page_by_page(shown: Shown) -> None:
    for number in range(120):
        shown.submit(f"job-{number}")
    seen: list[str] = []
    address = "/jobs"
    while address:
        page = (await shown.get(address)).text
        seen += re.findall(r">(job-\d+)<", page)
        older = re.findall(r'href="(/jobs\?before=\d+)">older', page)
        address = older[0] if older else ""

    assert seen == [f"job-{number}" for number in reversed(range(120))]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("desired", "buttons"),
    [(Desired.RUN, ["hold", "cancel"]), (Desired.HOLD, ["release", "cancel"]), (Desired.CANCEL, [])],
)
async def test_a_job_has_buttons_for_what_may_be_done_with_it(
    shown: Shown, desired: Desired, buttons: list[str]
) -> None:
    job = shown.submit()
    shown.service.store.write(lambda tx: set_desired(tx, job.id, desired, at_s=1e9, writer="api"))

    page = (await shown.get(f"/jobs/{job.id}")).text

    assert re.findall(rf'action="/jobs/{job.id}/(\w+)"', page) == buttons


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("action", "origin", "status", "desired"),
    [
        ("hold", "http://here", 303, Desired.HOLD),
        ("cancel", "http://here", 303, Desired.CANCEL),
        ("release", "http://here", 303, Desired.RUN),
        ("cancel", "http://elsewhere", 403, Desired.RUN),
        ("cancel", "http://here:3000", 403, Desired.RUN),
        ("cancel", "null", 403, Desired.RUN),
        ("delete", "http://here", 422, Desired.RUN),
    ],
)
async def test_only_own_pages_change_a_job(
    shown: Shown, action: str, origin: str, status: int, desired: Desired
) -> None:
    job = shown.submit()

    assert (await shown.post(f"/jobs/{job.id}/{action}", origin)).status_code == status

    with shown.service.store.read() as tx:
        row = get_job(tx, job.id)
    assert row is not None
    assert row.desired is desired


@pytest.mark.anyio
async def test_a_job_that_is_not_there_cannot_be_cancelled(shown: Shown) -> None:
    assert (await shown.post(f"/jobs/{'0' * 26}/cancel", "http://here")).status_code == 404


@pytest.mark.anyio
async def test_a_page_says_why_a_job_waits_in_the_words_of_the_api(shown: Shown) -> None:
    first, second = shown.submit("first", 16), shown.submit("second", 3)
    shown.start(shown.submit("runs", 2))
    for job in (first, second):
        with shown.service.store.read() as tx:
            row = get_job(tx, job.id)
            assert row is not None
            received = why_jobs_wait(tx, [row], shown.service.queue.read(tx, shown.service.now_s()))[row.id]
        assert f"{received.position} in the queue: {received.reason}." in (await shown.get(f"/jobs/{job.id}")).text


@pytest.mark.full
@pytest.mark.anyio
async def test_many_checkpoints_hide_no_other_event(shown: Shown) -> None:
    job = shown.submit()
    shown.start(job)
    for step in range(2100):
        save = CheckpointRow(job.id, 1, step, f"/ckpt/{step}", "", 1e9 + step)
        shown.service.store.write(lambda tx, save=save: store_checkpoint(tx, save, writer="scheduler"))  # type: ignore[misc]

    page, events = (await shown.get(f"/jobs/{job.id}")).text, (await shown.get("/events")).text

    assert "2100 checkpoints; the last: step 2099 is saved" in page
    assert "queue: waiting" in page  # the picture begins with the queue
    assert page.count("<li><time") == 1 + len(re.findall("<b>(?:queued|starting|reserved)</b>", page))
    assert "<b>queued</b>" in page
    assert events.count("checkpoints; the last") == 1


@pytest.mark.anyio
async def test_what_stands_below_a_placement_does_not_run_into_it(shown: Shown) -> None:
    job = shown.submit()
    received = {"decided_by": "patient", "fallback": "patient", "fallback_expected": {"slowdown": 1.0, "end_s": 2e9}}
    shown.write(Changes(decisions=[decided(job.id, received)]))

    for address in (f"/jobs/{job.id}", "/policy"):
        text = re.sub(r"<[^>]*>", "", (await shown.get(address)).text)
        assert "rack0-node0: 0-1 1.00 x its estimate" in text


@pytest.mark.anyio
async def test_the_page_of_a_job_with_a_plan_shows_what_each_rank_does(shown: Shown) -> None:
    stages = [{"layers": [HOSTILE, "b"], "forward_s": 0.25}, {"layers": ["c"], "forward_s": 0.5}]
    plan = {"data": 1, "pipeline": 2, "micro_batch": 1, "batch": 1, "step_s": 0.75, "stages": stages}
    job = shown.submit(plan=plan)
    shown.start(job)

    page = (await shown.get(f"/jobs/{job.id}")).text

    assert "Data 1 x pipeline 2 x tensor 1" in page
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r'<tr><th scope="row">\d.*?</tr>', page)]
    assert [row[:4] for row in rows[:2]] == [["0", "0", "0", "rack0-node1:0"], ["1", "1", "0", "rack0-node1:1"]]
    assert "<script>alert" not in page
    without = shown.submit("plain")
    assert "Sub-tasks" not in (await shown.get(f"/jobs/{without.id}")).text


def seq_of(shown: Shown) -> int:
    with shown.service.store.read() as tx:
        return last_seq(tx)


@pytest.mark.anyio
@pytest.mark.parametrize("page", LINKED, ids=[page.name for page in LINKED])
async def test_a_page_has_its_frame_escapes_names_and_changes_nothing(shown: Shown, page: DashboardPage) -> None:
    shown.submit(HOSTILE)
    before = seq_of(shown)

    answer = await shown.get(page.path)

    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert '<main id="content"' in answer.text
    assert "<h1" in answer.text
    assert f'<a href="{page.path}" aria-current="page">{page.title}</a>' in answer.text
    assert seq_of(shown) == before
    shown.submit(HOSTILE)
    parts = [(await shown.get(address)).text for address in re.findall(r'hx-get="([^"]*)"', answer.text)]
    assert not any("<script>alert" in text for text in (answer.text, *parts))


def test_an_address_belongs_to_one_page() -> None:
    cluster, jobs = LINKED[:2]
    assert [jobs.has(path) for path in ("/jobs", "/jobs/x", "/parts/jobs", "/parts/jobs/x/logs")] == [True] * 4
    assert [jobs.has(path) for path in ("/", "/jobsx", "/parts/jobsx", "/parts", "/events")] == [False] * 5
    assert [cluster.has(path) for path in ("/", "/parts/cluster", "/jobs")] == [True, True, False]


@pytest.mark.anyio
async def test_operators_alone_see_pages(shown: Shown) -> None:
    secrets = {}
    for role in (Role.OPERATOR, Role.USER, Role.READ_ONLY):
        made = new_token(role.value, "ada", role, 1.0, None)
        shown.service.store.write(lambda tx, row=made.row: add_token(tx, row))  # type: ignore[misc]
        secrets[role] = made.secret
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(shown.service)), base_url="http://127.0.0.1"
    ) as browser:
        for page in LINKED:
            answers = [
                await browser.get(page.path, headers={"Authorization": f"Bearer {secret}"})
                for secret in secrets.values()
            ]
            assert (page.path, [each.status_code for each in answers]) == (page.path, [200, 403, 403])
            assert (await browser.get(page.path)).status_code == 303
        refused = await browser.post("/login", data={"token": secrets[Role.USER]})
        entered = await browser.post("/login", data={"token": secrets[Role.OPERATOR]})
    assert (refused.status_code, "role operator" in refused.text) == (403, True)
    assert (entered.status_code, entered.headers["Location"]) == (303, "/")
