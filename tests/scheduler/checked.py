"""A scheduler that checks nodes before jobs start, where a site's own checks say what a test wants them to say."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.scheduler.served import Served

CLUSTER = """
node_types: {{slots: {{gpus: {gpus}, peak_flops: 1e12, memory_bytes: 1e9}}}}
racks: [{{nodes: [{nodes}]}}]
"""
SETTINGS = "cluster: cluster.yaml\nfolder: .longshore\npreflight: {jobs: auto}\n"

# A check of a site, as a package of its own. It does what a file with the node's name says: it finds that a device is
# broken, or hangs and lets nobody end it but by force. It notes what it was asked to check.
PLUGIN = """
import os, signal, time
from pathlib import Path
from longshore.preflight.check import Check, CheckStage, failed

HERE = Path(__file__).parent

def judge(context, stage):
    with (HERE / f"{stage}.log").open("a") as log:
        log.write(f"{os.getpid()} {context.node} {','.join(map(str, context.chosen.gpus))}\\n")
    path = HERE / f"{stage}-{context.node}"
    reported = path.read_text() if path.exists() else "fit"
    if reported == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600.0)
    kind, _, index = reported.partition(" ")
    if reported != "fit" and (kind != "gpu" or int(index) in context.chosen.gpus):
        yield failed(reported, "smoke", "no smoke", "replace it")

BEFORE = Check("site.before", 0, "as a file says", 2.0, lambda context: judge(context, "before"))
AFTER = Check("site.after", 0, "as a file says", 2.0, lambda context: judge(context, "after"), (), CheckStage.AFTER)
"""
POINTS = "[longshore.checks]\nsite.before = site_checks:BEFORE\nsite.after = site_checks:AFTER\n"


class Checked(Served):
    """A scheduler of nodes a, b, and so on, all fit until a test says otherwise.

    Args:
        folder: Where it is started.
        nodes: How many there are.
        gpus: Of each.
    """

    def __init__(self, folder: Path, nodes: int, gpus: int) -> None:
        self.names = "abcdefgh"[:nodes]
        named = ", ".join(f"{{type: slots, name: {it}}}" for it in self.names)
        (folder / "cluster.yaml").write_text(CLUSTER.format(gpus=gpus, nodes=named))
        (folder / "settings.yaml").write_text(SETTINGS)
        super().__init__(folder, "--config", "settings.yaml")
        self.plugin = folder / "plugin"
        paths = [str(self.plugin), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        about = self.plugin / "site_checks-1.0.dist-info"
        about.mkdir(parents=True)
        (self.plugin / "site_checks.py").write_text(PLUGIN)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: site-checks\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(POINTS)

    def say(self, node: str, reported: str, kind: str = "before") -> None:
        """Let the check of a node find that a device is broken, or "hang", or that all is "fit".

        Args:
            node: Its name.
            reported: The device, or one of these words.
            kind: "before" a job, or "after" it.
        """
        new = self.plugin / "new"
        new.write_text(reported)
        new.replace(self.plugin / f"{kind}-{node}")

    def checked(self, kind: str = "before") -> Iterator[tuple[int, str, str]]:
        """Yield process, node and GPUs of each check so far."""
        path = self.plugin / f"{kind}.log"
        for line in path.read_text().splitlines() if path.exists() else ():
            pid, node, gpus = line.split(" ")
            yield int(pid), node, gpus

    def places(self, job: str) -> list[str]:
        """Return where each attempt of a job was placed, as node:GPUs."""
        return [
            " ".join(f"{share['node']}:{','.join(map(str, share['gpus']))}" for share in it["placement"])
            for it in self.ask(f"/v1/jobs/{job}")["attempts"]
        ]

    def held(self) -> set[str]:
        """Return the jobs that hold GPUs."""
        return {job for node in self.ask("/v1/nodes") for job in node["gpus"] if job}

    def events(self, job: str, kind: str = "preflight") -> list[dict[str, Any]]:
        return [it for it in self.ask(f"/v1/jobs/{job}/events") if it["kind"] == kind]

    def quarantined(self) -> dict[str, dict[str, Any]]:
        """Return what stands in quarantine, by node, or by node:GPU."""
        found = self.ask("/v1/quarantine")
        return {it["node"] if it["gpu"] is None else f"{it['node']}:{it['gpu']}": it for it in found}
