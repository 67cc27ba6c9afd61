"""Pictures of the dashboard for the docs: a scheduler with real jobs, looked at by a real browser.

`make screenshots` writes them into docs/pictures.
"""

import shutil
import tempfile
from pathlib import Path

import yaml
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from tests.scheduler.served import Served, until

PICTURES = Path(__file__).parent.parent.parent.parent / "docs" / "pictures"
DESKTOP, PHONE = ViewportSize(width=1280, height=800), ViewportSize(width=360, height=740)
SLOTS = {"peak_flops": 1e12, "memory_bytes": 1e9, "intra_bytes_per_s": 10e9, "nic_bytes_per_s": 10e9}
CLUSTER = {
    "name": "pictures",
    "node_types": {"a100": {"gpus": 4, **SLOTS}, "v100": {"gpus": 4, **SLOTS, "peak_flops": 0.4e12}},
    "racks": [{"nodes": [{"type": "a100", "count": 4}, {"type": "v100", "count": 4}], "uplink_bytes_per_s": 10e9}],
}
TRAINS = (
    'i=0; while true; do i=$((i+1)); printf "step %5d  loss %d.%04d  %d samples/s\\n" '
    "$((i*10)) $((3-i/100)) $((9973-i*131%9000)) $((2040+i*37%90)); sleep 0.5; done"
)
STAYS = "trap '' TERM; echo checkpoint; " + TRAINS
JOBS = (
    ("tokenise", 1, "echo 64 shards; sleep 2"),
    ("vit-small", 2, "echo epoch 1; sleep 4; echo 'CUDA error: out of memory' >&2; exit 3"),
    ("resnet50-sweep", 4, TRAINS),
    ("bert-large", 6, TRAINS),
    ("clip-finetune", 3, STAYS),
    ("dlrm", 8, TRAINS),
    ("whisper-tune", 1, "echo resumes; sleep 5; kill -7 $$"),
    ("gnn-papers", 2, TRAINS),
    ("eval-nightly", 1, TRAINS),
    ("llama-7b", 16, TRAINS),
    ("mixtral-probe", 8, TRAINS),
)


def fill(served: Served) -> dict[str, str]:
    """Submit all jobs, wait until most run, and let one go that takes its time; return their ids by name."""
    jobs = {
        name: served.submit("--gpus", str(gpus), "--name", name, "--", "sh", "-c", script)
        for name, gpus, script in JOBS
    }
    until(lambda: served.state(jobs["gnn-papers"]) == "running" and served.state(jobs["vit-small"]) == "failed")
    until(lambda: len(served.told("status", jobs["whisper-tune"])["attempts"]) == 2)
    served.call("cancel", jobs["clip-finetune"])
    until(lambda: served.state(jobs["clip-finetune"]) == "stopping")
    return jobs


def take(browser: Browser, url: str, name: str, size: ViewportSize, *, dark: bool) -> None:
    """Take one picture."""
    context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", timezone_id="UTC")
    page = context.new_page()
    page.goto(url)
    page.evaluate("document.fonts.ready")
    page.screenshot(path=PICTURES / f"{name}.png")
    context.close()


def main() -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as play:
        served = Served(Path(name), "--cluster", "cluster.yaml", "--policy", "eft", "--open")
        (served.folder / "cluster.yaml").write_text(yaml.safe_dump(CLUSTER), encoding="utf-8")
        served.start()
        jobs = fill(served)
        url = f"http://127.0.0.1:{served.port}"
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take(browser, url, "dashboard-cluster", DESKTOP, dark=False)
        take(browser, f"{url}/jobs/{jobs['resnet50-sweep']}", "dashboard-job", DESKTOP, dark=True)
        take(browser, f"{url}/policy", "dashboard-policy", DESKTOP, dark=False)
        take(browser, url, "dashboard-phone", PHONE, dark=False)
        served.cancel_all()
        served.end()


if __name__ == "__main__":
    main()
