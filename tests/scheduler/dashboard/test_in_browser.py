"""The dashboard in a real browser, against a scheduler that runs real jobs."""

import json
import shutil
from collections.abc import Callable, Iterator

import pytest

from longshore.scheduler.dashboard.pages import PICTURE_STEP_S
from tests.scheduler.served import PATIENCE_S, Served, until

pytest.importorskip("playwright", reason="no playwright here; pip install -e '.[dev]'")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Route, ViewportSize, expect, sync_playwright

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
pytestmark = [
    pytest.mark.full,
    pytest.mark.long,
    pytest.mark.skipif(not BROWSER, reason="no chromium here; on Debian: apt-get install chromium"),
]
PHONE = ViewportSize(width=360, height=740)
STEPS = """
i=0; while [ $i -lt 90 ]; do i=$((i+1)); echo "train $i $i.5"; done >> $LONGSHORE_STEPS
echo '90 91.5 - /ckpt/90' >> $LONGSHORE_SAVED
while [ ! -e told ]; do sleep 0.05; done
"""
COUNTS = "i=0; while [ ! -e go ]; do i=$((i+1)); echo line $i; sleep 0.1; done; echo the end"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    it = Served(tmp_path_factory.mktemp("served"), "--open", "--log-format", "json")
    it.start()
    yield it
    it.cancel_all()
    it.end()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A scheduler as it is started without options: it asks for a token."""
    it = Served(tmp_path_factory.mktemp("guarded"))
    it.start()
    yield it
    it.cancel_all()
    it.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        yield play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"])


class Visit:
    """A visit of the dashboard; at its end nothing may have been asked elsewhere, or complained about."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url, self.complaints = url, list[str]()
        self.page: Page = context.new_page()
        self.page.set_default_timeout(1000.0 * PATIENCE_S)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._look(request.url))

    def _look(self, url: str) -> None:
        if not url.startswith(self.url):
            self.complaints.append(f"asked for {url}")

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page


@pytest.fixture
def visit(served: Served, browser: Browser) -> Iterator[Visit]:
    context = browser.new_context()
    it = Visit(context, f"http://127.0.0.1:{served.port}")
    yield it
    context.close()
    assert it.complaints == []


def submit(served: Served, script: str, *, gpus: int = 1, name: str = "trains") -> str:
    return served.add("sh", "-c", script, gpus=gpus, name=name)


def link(guarded: Served) -> str:
    """Return the path of a link that lets one browser in."""
    return str(guarded.tell("POST", "/v1/browser-links")["path"])


def test_gpus_change_before_the_eye_when_a_job_starts_and_ends(served: Served, visit: Visit) -> None:
    page = visit.go("/")
    page.evaluate("window.stays = true")

    job = submit(served, "while [ ! -e one ]; do sleep 0.05; done", gpus=3)

    block = page.locator(f".gpus a[href='/jobs/{job}']")
    expect(block).to_have_class("block running s3", timeout=1000.0 * PATIENCE_S)
    expect(block).to_have_accessible_name("GPUs 0 to 2: running, job trains")
    expect(page.locator("#status")).to_contain_text("13 of 16 GPUs free")
    (served.folder / "one").touch()
    expect(block).to_have_count(0, timeout=1000.0 * PATIENCE_S)
    assert page.evaluate("window.stays")  # it was never loaded again


def test_output_is_followed_and_the_page_tells_when_the_job_has_ended(served: Served, visit: Visit) -> None:
    job = submit(served, COUNTS)
    page = visit.go(f"/jobs/{job}")

    log = page.locator("#log")
    expect(log).to_contain_text("line 1\n", timeout=1000.0 * PATIENCE_S)
    before = log.inner_text().count("line")
    until(lambda: log.inner_text().count("line") > before)
    (served.folder / "go").touch()

    expect(log).to_contain_text("the end", timeout=1000.0 * PATIENCE_S)
    expect(page.locator(".title .badge")).to_have_text("succeeded", timeout=1000.0 * PATIENCE_S)
    expect(page.locator(".gantt rect.running")).to_have_count(1)
    expect(page.locator("#log-more")).to_have_count(0, timeout=1000.0 * PATIENCE_S)


def test_output_cannot_become_part_of_the_page(served: Served, visit: Visit) -> None:
    job = submit(served, "printf '\\033[31m<img src=x onerror=alert(1)>\\033[0m</pre><h1 id=mine>'")
    served.ended(job)

    page = visit.go(f"/jobs/{job}")

    assert page.locator("#log").inner_text() == "<img src=x onerror=alert(1)></pre><h1 id=mine>"
    expect(page.locator("#mine")).to_have_count(0)


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.id"))


def tab_until(page: Page, is_there: Callable[[str], bool], most: int = 60) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if is_there(focused(page)):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"  # it is seen where the focus is
            return
    raise AssertionError("the keyboard does not get there")


def test_everything_is_reached_with_the_keyboard(served: Served, visit: Visit) -> None:
    job = submit(served, "while [ ! -e keys ]; do echo x; sleep 0.5; done", name="by-keys")
    until(lambda: served.state(job) == "running")
    page = visit.go("/")

    page.keyboard.press("Tab")
    assert focused(page) == "#content"  # the link that skips the navigation comes first
    tab_until(page, lambda at: at == "/policy")
    tab_until(page, lambda at: at == f"/jobs/{job}")
    where = page.evaluate("document.activeElement.id")
    second = submit(served, "while [ ! -e keys ]; do sleep 0.5; done", name="second")
    expect(page.locator(f".gpus a[href='/jobs/{second}']")).to_have_count(1, timeout=1000.0 * PATIENCE_S)
    assert page.evaluate("document.activeElement.id") == where  # a page that changes keeps the focus
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("by-keys")
    for name in ("follow", "log"):
        tab_until(page, lambda at, name=name: at == name)  # type: ignore[misc]
    (served.folder / "keys").touch()


def test_following_can_be_switched_off(served: Served, visit: Visit) -> None:
    job = submit(served, "echo first; while [ ! -e off ]; do sleep 0.05; done; echo second")
    page = visit.go(f"/jobs/{job}")
    expect(page.locator("#log")).to_have_text("first\n", timeout=1000.0 * PATIENCE_S)

    page.locator("#follow").uncheck()
    (served.folder / "off").touch()

    expect(page.locator(".title .badge")).to_have_text("succeeded", timeout=1000.0 * PATIENCE_S)
    assert page.locator("#log").inner_text() == "first\n"
    page.locator("#follow").check()
    expect(page.locator("#log")).to_have_text("first\nsecond\n", timeout=1000.0 * PATIENCE_S)


def test_pages_are_accessible_and_fit_a_phone(served: Served, visit: Visit) -> None:
    job = submit(served, f"echo {'long' * 200}; exit 3", gpus=2, name="a-name-that-is-as-long-as-a-name-may-be")
    telling = submit(served, STEPS, name="tells-of-steps")
    served.ended(job)
    page = visit.go(f"/jobs/{telling}")
    expect(page.locator("figure.steps")).to_have_count(1, timeout=1000.0 * PATIENCE_S)
    expect(page.get_by_role("heading", name="Checkpoints")).to_have_count(1, timeout=1000.0 * PATIENCE_S)
    visit.page.set_viewport_size(PHONE)
    for path in ("/", "/jobs", f"/jobs/{job}", f"/jobs/{telling}", "/policy", "/events"):
        page = visit.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], path
        for scheme, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            found = Axe().run(page, options=options)
            assert found.violations_count == 0, f"{path}, {scheme}\n{found.generate_report()}"
    (served.folder / "told").touch()


def test_a_link_lets_a_browser_in_without_the_token_and_buttons_hold_release_and_cancel_a_job(
    guarded: Served, browser: Browser
) -> None:
    context = browser.new_context()
    it = Visit(context, guarded.url)
    page = it.go(link(guarded))
    assert page.url == f"{guarded.url}/"
    expect(page.get_by_role("button", name="Log out")).to_have_count(1)
    assert [cookie.get("sameSite") for cookie in context.cookies()] == ["Strict"]
    job = guarded.add("sleep", "1000")
    badge = it.go(f"/jobs/{job}").locator(".title .badge").first
    for button, state in (("Hold", "held"), ("Release", "running")):
        page.get_by_role("button", name=button).click()
        expect(badge).to_have_text(state, timeout=1000.0 * PATIENCE_S)
    assert Axe().run(page).violations_count == 0

    cancel = page.get_by_role("button", name="Cancel the job")
    expect(cancel).to_be_hidden()  # one click does not end a job
    page.locator("summary", has_text="Cancel").click()
    cancel.click()

    expect(badge).to_have_text("cancelled", timeout=1000.0 * PATIENCE_S)
    expect(page.locator(".actions")).to_have_count(0)
    assert it.complaints == []
    context.close()


def test_what_is_opened_stays_open_while_the_page_changes_around_it(served: Served, visit: Visit) -> None:
    job = submit(served, "while [ ! -e open ]; do sleep 0.05; done")
    page = visit.go(f"/jobs/{job}")
    expect(page.locator(".title .badge")).to_have_text("running", timeout=1000.0 * PATIENCE_S)
    page.locator("summary", has_text="Cancel").click()
    page.evaluate("document.getElementById('job').dataset.old = 'yes'")

    expect(page.locator("#job[data-old]")).to_have_count(0, timeout=1000.0 * PATIENCE_S)  # another one is in its place

    expect(page.get_by_role("button", name="Cancel the job")).to_be_visible()
    (served.folder / "open").touch()


def test_a_page_goes_on_after_a_link_was_dragged_and_a_key_was_lost(served: Served, visit: Visit) -> None:
    job = submit(served, "while [ ! -e dragged ]; do sleep 0.05; done")
    page = visit.go("/jobs")
    page.locator(f"a[href='/jobs/{job}']").first.drag_to(page.locator("h1"))
    page.keyboard.down("CapsLock")  # of which some systems never tell that it was let go
    assert not page.evaluate("isHeld()")

    (served.folder / "dragged").touch()

    row = page.locator("tr", has=page.locator(f"a[href='/jobs/{job}']"))
    expect(row).to_contain_text("succeeded", timeout=1000.0 * PATIENCE_S)


@pytest.mark.parametrize("hand", ["mouse", "keyboard"])
def test_a_button_that_is_held_down_while_the_page_would_change_is_clicked(
    hand: str, served: Served, visit: Visit
) -> None:
    job = submit(served, "while [ ! -e pressed ]; do sleep 0.05; done")
    page = visit.go(f"/jobs/{job}")
    badge, cancel = page.locator(".title .badge").first, page.get_by_role("button", name="Cancel the job")
    expect(badge).to_have_text("running", timeout=1000.0 * PATIENCE_S)
    page.locator("summary", has_text="Cancel").click()

    held_ms = 1000.0 * (PICTURE_STEP_S + 2.0)  # longer than a picture stands
    if hand == "mouse":
        cancel.click(delay=held_ms)
    else:
        cancel.press("Space", delay=held_ms)

    expect(badge).to_have_text("cancelled", timeout=1000.0 * PATIENCE_S)


def test_a_form_of_another_site_changes_nothing(served: Served, browser: Browser) -> None:
    job = submit(served, "while [ ! -e foreign ]; do sleep 0.05; done")
    page = browser.new_page()
    form = f'<form method="post" action="{served.url}/jobs/{job}/cancel"><button>win</button></form>'
    page.route("http://localhost:3000/*", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto("http://localhost:3000/")

    page.get_by_role("button", name="win").click(no_wait_after=True)

    expect(page.locator("h1")).to_have_text("Wrong host")
    assert served.ask(f"/v1/jobs/{job}")["desired"] == "run"
    (served.folder / "foreign").touch()
    page.close()


def test_a_scheduler_that_does_not_answer_is_shown(served: Served, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{served.port}/")
    expect(page.locator("#link")).to_have_text("live")

    context.set_offline(True)

    expect(page.locator("#link")).to_have_text("no answer", timeout=1000.0 * PATIENCE_S)
    context.set_offline(False)
    expect(page.locator("#link")).to_have_text("live", timeout=1000.0 * PATIENCE_S)
    context.close()


def test_a_token_lets_a_browser_in_and_it_can_leave_again(guarded: Served, browser: Browser) -> None:
    context = browser.new_context()
    it = Visit(context, guarded.url)
    page = it.go("/jobs")
    expect(page.locator("h1")).to_have_text("Token")
    assert Axe().run(page).violations_count == 0

    page.get_by_label("Token").fill("ls_wrong")
    page.get_by_role("button", name="Enter").click()
    expect(page.get_by_role("alert")).to_contain_text("is unknown")
    assert ["401" in text for text in it.complaints] == [True]  # what the console says of the refusal
    it.complaints.clear()

    page.get_by_label("Token").fill(guarded.token)
    page.get_by_role("button", name="Enter").click()
    expect(page.locator("#link")).to_have_text("live")
    job = guarded.add("sleep", "1000", name="seen-by-a-token")
    expect(page.locator(f".gpus a[href='/jobs/{job}']")).to_have_count(1, timeout=1000.0 * PATIENCE_S)
    expect(it.go(f"/jobs/{job}").locator("h1")).to_have_text("seen-by-a-token")
    assert guarded.token not in page.content()

    page.route("**/logout", answer_late)
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Token")
    assert it.go("/").url.endswith("/login")
    assert it.complaints == []
    context.close()


def answer_late(route: Route) -> None:
    """Let the browser wait for an answer longer than between two looks of a page."""
    answer = route.fetch(max_redirects=0)
    route.request.frame.page.wait_for_timeout(3000.0)
    route.fulfill(response=answer)


def test_a_wrong_address_is_answered_by_a_page(served: Served, browser: Browser) -> None:
    page = browser.new_page()
    for path in ("/nothing", "/jobs?before=nobody"):
        page.goto(f"{served.url}{path}")
        expect(page.get_by_role("link", name="Jobs")).to_have_count(1)
        assert Axe().run(page).violations_count == 0
    page.close()


def test_a_log_for_programs_is_json_line_by_line(served: Served) -> None:
    lines = (served.folder / "serve.log").read_text().splitlines()[:-1]  # the last may be half written

    events = [
        json.loads(line)
        for line in lines
        if not line.startswith(("compiling", "loading", "Longshore serves", "It is open", "Its slots"))
    ]

    assert any(event["event"].startswith("leads with token") for event in events)
    assert all(set(event) <= {"at", "level", "logger", "event", "error"} for event in events)
