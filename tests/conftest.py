import contextlib
import gc
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import slurm_cluster as slurm
from benchmarks.slurm_cluster import SlurmCluster
from tests.command_line import Command
from tests.scheduler.backends import ray_cluster as ray
from tests.scheduler.backends.ray_cluster import RayCluster
from tests.support.budgets import register_profiles
from tests.support.going_on import GoesOn
from tests.support.limits import clock
from tests.support.processes import LIGHT
from tests.support.small_disk import unmount_all_abandoned

pytest_plugins = [f"tests.support.{it}" for it in ("signals", "hanging", "summary", "lanes")]
# Their assertions compare whole runs: a failure shows what differs, as in a file of tests.
pytest.register_assert_rewrite("tests.cluster.agreement", "tests.ring.trial")

register_profiles()
if LIGHT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # all that tests start have it
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), LIGHT)))


SERVER = re.compile(r"(?:/test_|[\[-])(ray|slurm)[_\]-]")
RAY = pytest.StashKey[RayCluster]()


def server_of(nodeid: str) -> str:
    """Return which of the servers that many tests share a test asks, "" for none."""
    found = SERVER.search(nodeid)
    return found[1] if found else ""


class ByServer(GoesOn):
    """Lets the tests of a file, and all that share a server, run in one process: a Ray takes a minute to start."""

    def _split_scope(self, nodeid: str) -> str:
        return server_of(nodeid) or str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByServer:
    return ByServer(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Say how a process of tests ended: xdist tells a kill and a crash with the same words."""
    if error:
        code = node.gateway._io.popen.wait(10)
        memory = re.findall("(?:MemTotal|MemAvailable): .*", Path("/proc/meminfo").read_text())
        reporter = node.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line(f"\n{node.gateway.id} ended with {code} (of a signal, below 0); {'; '.join(memory)}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Let pytest delete the folders of runs of which tests were killed while they had a file system there."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        unmount_all_abandoned()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let no collection of garbage walk through what stays to the end: a twentieth of all work would go there."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Ray after the last test that asks for it: a Ray without any work keeps half a core busy."""
    goes_on = nextitem is not None and ("PYTEST_XDIST_WORKER" not in os.environ or server_of(nextitem.nodeid) == "ray")
    if RAY in item.config.stash and not goes_on:
        item.config.stash[RAY].end()
        del item.config.stash[RAY]


@pytest.fixture
def longshore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Open descriptors, enough for the next ones to be beyond what `select.select` accepts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2048)), hard))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(1100):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for PyTorch: small networks lose by sharing their work, most of all where other programs run."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A real Slurm with four nodes of four GPUs each."""
    if why := slurm.why_not():
        pytest.skip(why)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), "abcd")
    try:
        with clock.stopped():
            cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def ray_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RayCluster:
    """A real Ray with four nodes of four GPUs each, the same for all tests in a row that ask for it."""
    if why := ray.why_not():
        pytest.skip(why)
    if RAY not in request.config.stash:
        cluster = request.config.stash[RAY] = RayCluster(tmp_path_factory.mktemp("ray"), "abcd")
        with clock.stopped():
            cluster.start()
    return request.config.stash[RAY]
