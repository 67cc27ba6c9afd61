"""A real agent that reports to a real scheduler, and what it finds on a machine."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from longshore.preflight.context import NodeSetup
from longshore.preflight.readers import GpuReader, GpuReading
from longshore.preflight.rounds import check_node
from longshore.scheduler.client import Client
from longshore.scheduler.health import agent
from longshore.scheduler.health.agent import Checking, gpu_reports
from tests.scheduler.served import LONGSHORE, PATIENCE_S, Served, until
from tests.support import processes

NODE = "rack0-node2"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "c.yaml").write_text("poll_s: 0.2\n")
    it = Served(folder, "--config", "c.yaml")
    it.start()
    yield it
    it.end()


def reported(served: Served, what: str) -> object:
    pages = httpx.get(f"{served.url}/v1/nodes", headers=served.headers, timeout=PATIENCE_S, trust_env=False).json()
    return next(page[what] for page in pages if page["name"] == NODE)


def shown(served: Served) -> str:
    return next(line for line in served.call("node", "list").stdout.splitlines() if line.startswith(NODE))


@contextmanager
def agent_of(served: Served) -> Iterator[None]:
    """An agent that is killed in the end."""
    line = [*LONGSHORE, "node", "agent", "--node", NODE, "--every", "100ms", "--url", served.url]
    with processes.start(line, cwd=served.folder, stderr=processes.DEVNULL):
        yield


def test_a_node_whose_agent_dies_gets_no_job_until_it_reports_again_or_is_resumed(served: Served) -> None:
    with agent_of(served):
        until(lambda: reported(served, "reported") == {"gpus": []})
        assert shown(served).endswith("4 of 4 slots free  . . . .")
    until(lambda: reported(served, "liveness") == "down")
    until(lambda: "0 of 4 slots free  . . . .  dead: fast: " in shown(served))
    job = served.add("true", gpus=16)
    assert served.state(job) == "queued"

    with agent_of(served):
        assert served.ended(job) == "succeeded"
        assert reported(served, "liveness") == "up"
    until(lambda: reported(served, "liveness") != "up")
    served.call("node", "resume", NODE)
    until(lambda: reported(served, "liveness") == "up")


@pytest.mark.full
def test_a_drained_node_shows_why(served: Served) -> None:
    served.call("node", "drain", NODE, "--reason", "a fan is loud")
    assert shown(served).endswith("out of service: a fan is loud")
    served.call("node", "resume", NODE)
    assert shown(served).endswith(". . . .")


def test_an_agent_for_a_node_that_is_not_there_is_one_line(served: Served) -> None:
    done = served.call("node", "agent", "--node", "nowhere", check=False)
    assert (done.returncode, done.stderr.splitlines()[-1].partition(";")[0]) == (
        2,
        "longshore: there is no node 'nowhere'",
    )


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize(("value", "healthy"), [(3, True), (4, True), (15, False)])
@pytest.mark.parametrize("asked", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"])
def test_a_gpu_without_memory_or_utilisation_values_is_healthy_and_a_lost_one_is_not(
    *, asked: str, value: int, healthy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise NvmlError(value)

    # As NVIDIA's documentation says of a GPU that is split up (MIG).
    nvml = SimpleNamespace(
        NVMLError=NvmlError, NVMLLibraryMismatchError=NvmlError, NVML_ERROR_NOT_SUPPORTED=3,
        NVML_ERROR_NO_PERMISSION=4, NVML_ERROR_GPU_IS_LOST=15, NVML_ERROR_RESET_REQUIRED=16, NVML_ERROR_UNKNOWN=999,
        NVML_NVLINK_ERROR_DL_REPLAY=0, NVML_NVLINK_ERROR_DL_RECOVERY=1,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1, NVML_VOLATILE_ECC=0,
        NVML_TEMPERATURE_GPU=0, NVML_NVLINK_MAX_LINKS=0, nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(free=1 << 30),
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=50), nvmlDeviceGetTotalEccErrors=lambda *_: 0,
        nvmlDeviceGetTemperature=lambda *_: 30,
    )  # fmt: skip
    setattr(nvml, asked, fails)
    monkeypatch.setattr(agent, "_open_reader", lambda: GpuReader(nvml))  # type: ignore[arg-type]
    reported = {"nvmlDeviceGetMemoryInfo": (0.5, 0), "nvmlDeviceGetUtilizationRates": (0.0, 1 << 30)}[asked]
    (found,) = gpu_reports()
    assert (found.healthy, found.utilisation, found.free_bytes) == ((True, *reported) if healthy else (False, 0.0, 0))


def test_gpus_are_reported_once_their_driver_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a reboot the agent may start before it, and a driver that is upgraded does not answer for a while."""
    answers = [False, False, True]

    def start() -> None:
        if not answers.pop(0):
            raise NvmlError(9)

    nvml = SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=start, nvmlDeviceGetCount=lambda: 2, NVML_ERROR_GPU_IS_LOST=15,
        NVML_ERROR_RESET_REQUIRED=16, NVML_ERROR_UNKNOWN=999,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(GpuReader, "_read_state", lambda _, index: GpuReading(index, healthy=True))
    agent._open_reader.cache_clear()
    try:
        assert [[each.index for each in gpu_reports()] for _ in range(4)] == [[], [], [0, 1], [0, 1]]
    finally:
        agent._open_reader.cache_clear()
    assert answers == []


@pytest.mark.parametrize("slots", [False, True])
def test_the_scheduler_decides_whether_checks_run_on_slots(
    *, slots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent cannot: where no GPU is seen, the driver may be what is broken."""
    seen: list[bool] = []
    reported = threading.Event()

    def check(setup: NodeSetup, *_: object) -> tuple[bool, str]:
        seen.append(setup.slots)
        return False, "smoke"

    client = Client("http://127.0.0.1:9")
    monkeypatch.setattr(client, "report_check_outcome", lambda *_, **__: reported.set())
    monkeypatch.setattr(agent, "check_node", check)
    Checking(client, NodeSetup(NODE, tmp_path)).begin_unless_busy(
        [{"id": "a", "gpus": [0], "level": 1, "slots": slots, "cleared_s": {}}]
    )
    assert reported.wait(PATIENCE_S)
    assert seen == [slots]


@pytest.mark.full
def test_checks_of_a_gpu_that_no_driver_shows_do_not_pass(tmp_path: Path) -> None:
    assert not check_node(NodeSetup(NODE, tmp_path), (1023,), {})[0]


def test_the_gpus_of_this_machine_are_reported_if_it_has_any() -> None:
    found = gpu_reports()
    if not found:
        pytest.skip("no GPU, or no nvidia-ml-py: pip install '.[nvidia]' in a clone of Longshore")
    assert [it.index for it in found] == list(range(len(found)))
    assert all(it.healthy and it.free_bytes > 0 for it in found)
