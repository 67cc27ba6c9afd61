"""A checkpoint that is replaced while its policy serves."""

import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, JobRequest, MirrorOrigin
from longshore.scheduler.placement.placer import Decision, Placer
from longshore.scheduler.policy_host import process
from longshore.scheduler.policy_host.messages import Edition
from longshore.scheduler.policy_host.process import Reload, Rollover
from tests.plain_run import busy_case
from tests.scheduler.live_run import site_of

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
PATIENCE_S = 120.0  # far more than anything here takes


class Served:
    """A policy that decides about job after job."""

    def __init__(self, checkpoint: Path) -> None:
        self.mirror, self.jobs = ClusterMirror(site_of(busy_case(ring=False)), MirrorOrigin(0.0)), 0
        self.placer = Placer(HEURISTICS["pack"], str(checkpoint), PATIENCE_S)
        self.placer.follow_mirror(self.mirror)
        self.placer.wait_until_ready(PATIENCE_S)

    def decide(self) -> Decision:
        self.jobs += 1
        self.mirror.begin(float(self.jobs))
        self.mirror.submit(JobRequest(str(self.jobs), 1, 60.0, float(self.jobs)))
        assert self.mirror.find_due_job() is not None
        decision = self.placer.decide(self.mirror)
        assert decision.kind is None
        if decision.started:
            self.mirror.finish(decision.job)
        return decision

    def decide_until(self, holds: Callable[[Decision], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not holds(self.decide()):
            assert time.monotonic() < end_s
            time.sleep(0.02)

    def look_until(self, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end_s
            self.placer.poll_policy(self.mirror)
            time.sleep(0.02)

    @property
    def reloads(self) -> dict[Reload, int]:
        assert self.placer.rollover is not None
        return dict(self.placer.rollover.reloads)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copy(CHECKPOINTS / "hetero64-wait-1.zip", tmp_path / "policy.zip"))


@pytest.fixture
def served(checkpoint: Path) -> Iterator[Served]:
    served = Served(checkpoint)
    yield served
    served.placer.end()


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


@pytest.mark.full
def test_a_checkpoint_that_is_replaced_takes_over_and_a_torn_one_changes_nothing(
    served: Served, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, (older, newer) = digest(checkpoint), (CHECKPOINTS / f"hetero64-wait-{number}.zip" for number in (1, 2))
    assert served.decide().version == first
    served.placer.request_reload()
    assert served.decide().version == first
    served.decide_until(lambda _: Reload.UNCHANGED in served.reloads)

    shutil.copy(newer, checkpoint)
    served.decide_until(lambda decision: decision.version == digest(newer))
    assert served.reloads == {Reload.UNCHANGED: 1, Reload.DONE: 1}

    checkpoint.write_bytes(newer.read_bytes()[:1000])
    served.decide_until(lambda _: Reload.REFUSED in served.reloads)
    assert served.decide().version == digest(newer)
    assert served.placer.rollover is not None
    assert "is no checkpoint or is damaged" in served.placer.rollover.last_refusal
    assert "stays at version" in caplog.text
    remarks = [line for line in caplog.text.splitlines() if "it was trained under" in line]
    assert len(remarks) == 1  # of the newer version; that of the first one came before this test
    assert all("estimates exact (here estimates users)" in remark for remark in remarks)

    shutil.copy(older, checkpoint)
    served.look_until(lambda: served.reloads[Reload.DONE] == 2)  # also where nothing is to be decided
    assert served.decide().version == first


def test_a_newer_version_that_cannot_be_read_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> Edition:
        raise PackageNotFoundError(name)

    served = Rollover("pack", PATIENCE_S)
    mirror = ClusterMirror(site_of(busy_case(ring=False)), MirrorOrigin(0.0))
    monkeypatch.setattr(process, "read_edition", gone)
    served.request_reload()
    end_s = time.monotonic() + PATIENCE_S
    while Reload.REFUSED not in served.reloads:
        assert time.monotonic() < end_s
        served.advance_reload(mirror)

    served.advance_reload(mirror)
    assert served.reloads == {Reload.REFUSED: 1}
    assert "cannot be read" in served.last_refusal
