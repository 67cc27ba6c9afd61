import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from longshore.eval.figures import report_pictures
from longshore.eval.report import write_report
from tests.eval.runs import EVENTS, GPU_NODE, comparison, policies, scenarios
from tests.support import processes

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    "--window-size=1280,3600",
)  # fmt: skip
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not BROWSER, reason="no chromium here; on Debian: apt-get install chromium"),
]


def test_a_browser_renders_the_report_without_complaint(tmp_path: Path) -> None:
    from matplotlib.image import imread

    shown = report_pictures(
        comparison(6), policies(6), scenarios(6), events={"pack": EVENTS}, scenario_text="w", gpu_node=GPU_NODE
    )
    write_report(tmp_path / "report.html", comparison(6), shown, title="In a browser", facts={"date": "2026-11-21"})
    shot = tmp_path / "shot.png"
    command = [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={shot}"]
    run = processes.run([*command, (tmp_path / "report.html").as_uri()], capture_output=True, timeout_s=120, check=True)
    assert not re.findall(r".*:CONSOLE.*", run.stderr)
    image = imread(shot)[..., :3]
    assert image.shape[:2] == (3600, 1280)
    # Text, tables and coloured figures reach down the page; an empty or broken page is all one colour.
    bands = image[:3000].reshape(10, -1, 3)
    assert all(np.unique((band * 255).astype(np.uint8), axis=0).shape[0] > 20 for band in bands)
