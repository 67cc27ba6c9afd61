"""The answer of `longshore evaluate` in a real browser, at a desk and on a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="no playwright here; pip install -e '.[dev]'")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright

from longshore.agents.heuristics import HEURISTICS
from longshore.eval.answer import report_sections
from longshore.eval.report import write_report
from tests.eval.answers import advice, run
from tests.eval.runs import comparison

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not BROWSER, reason="no chromium here; on Debian: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        yield play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"])


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("answer")
    found = advice(*run(at, windows=9, policies=tuple(HEURISTICS)))
    section = report_sections(found, 604_800.0, ("<b>A remark</b> & more.",))
    write_report(at / "report.html", comparison(6), [], title="Answer", facts={}, answer=section)
    return at / "report.html"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_answer_fits_the_window_and_folds_the_rest_out(browser: Browser, page_path: Path, width: int) -> None:
    console: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("console", lambda message: console.append(message.text))
    page.goto(page_path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width  # tables scroll in their own boxes
    assert page.locator("h2").first.inner_text() == "What to run"
    assert page.get_by_text("<b>A remark</b> & more.").is_visible()
    hidden = page.locator("details tbody tr")
    assert hidden.count() > 20
    assert not hidden.first.is_visible()
    page.locator("summary").click()
    assert hidden.first.is_visible()
    assert console == []
    page.close()


def test_tables_of_the_answer_are_accessible(browser: Browser, page_path: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_path.as_uri())
    found = Axe().run(page, options={"rules": {"scrollable-region-focusable": {"enabled": False}}})
    assert [it["id"] for it in found.response["violations"] if it["impact"] in ("serious", "critical")] == []
    page.close()
