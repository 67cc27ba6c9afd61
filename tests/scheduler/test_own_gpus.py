"""A scheduler without a cluster file on a machine with GPUs: those are its cluster."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.preflight.readers import GpuInfo, GpuLostError, GpuReading, NvLink, Pcie
from longshore.scheduler.backends.local import own_gpus
from longshore.scheduler.backends.local.own_gpus import OwnGpus
from longshore.scheduler.service import own_cluster
from longshore.scheduler.service.own_cluster import QUICKSTART, default_cluster
from tests.preflight.nvml_library import build_nvml
from tests.support.processes import PYTHON_PATH

from .served import Served, until

SXM, PCIE = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"


def info(index: int, name: str = SXM, memory_bytes: int = 80 << 30) -> GpuInfo:
    return GpuInfo(index, f"GPU-{index}", name, f"00000000:0{index}:00.0", memory_bytes, memory_bytes)


def reader_of(gpus: Sequence[GpuInfo], links: int = 0, pcie: Pcie | None = None) -> Any:
    return SimpleNamespace(
        gpus=lambda: gpus, count=lambda: len(gpus), max_pcie_generation=lambda _: 5, pcie=lambda _: pcie,
        nvlinks=lambda _: [NvLink(link, active=True, remote_pci="") for link in range(links)] or None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "peak", "memory", "link"),
    [
        (reader_of([info(0), info(1)], links=18), 989e12, 80 << 30, 450e9),
        (reader_of([info(0, PCIE)], pcie=Pcie(1, 16, 16)), 756e12, 80 << 30, 63e9),  # idle, it runs as an older one
        (reader_of([info(0, "Tesla T4", 15 << 30), info(1)]), 65e12, 15 << 30, 4e9),
        (reader_of([info(0, "NVIDIA L40S", 48 << 30)]), 362e12, 48 << 30, 4e9),
        (reader_of([info(0, "NVIDIA L4", 24 << 30)]), 121e12, 24 << 30, 4e9),
        (reader_of([info(0, "NVIDIA GB200", 180 << 30)]), 2500e12, 180 << 30, 4e9),
        (reader_of([info(0, 'Unknown "9": {x}', 8 << 30)]), 50e12, 8 << 30, 4e9),
    ],
)
def test_a_cluster_file_is_written_of_what_the_driver_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Any, peak: float, memory: int, link: float
) -> None:
    monkeypatch.setattr(own_cluster, "open_own_gpus", lambda: reader)
    setup = read_cluster(default_cluster(tmp_path))
    assert setup.node_names == (os.uname().nodename,)
    cluster = setup.cluster
    assert cluster.peak_flops.tolist() == [peak]
    assert cluster.memory_bytes.tolist() == [memory]
    assert cluster.intra_bytes_per_s.tolist() == pytest.approx([link], rel=0.01)
    assert int(cluster.first_gpu[-1]) == len(reader.gpus())


def test_without_gpus_there_are_slots_and_a_file_that_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(own_cluster, "open_own_gpus", lambda: reader_of([]))
    path = default_cluster(tmp_path)
    assert path.read_text() == QUICKSTART
    monkeypatch.setattr(own_cluster, "open_own_gpus", lambda: reader_of([info(0)]))
    assert default_cluster(tmp_path).read_text() == QUICKSTART
    assert "delete it" in caplog.text
    path.write_text(QUICKSTART + "\n")
    caplog.clear()
    default_cluster(tmp_path)
    assert caplog.text == ""


def test_gpus_that_fall_off_or_a_driver_that_hangs_are_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [[GpuReading(0, healthy=True, utilisation=0.5, free_bytes=9), GpuReading(1, healthy=True)]]
    hangs, asked = threading.Event(), threading.Event()

    def states() -> Any:
        asked.set()
        answer = answers[0]
        if answer is None:
            hangs.wait(60.0)
        if isinstance(answer, Exception):
            raise answer
        return answer or []

    reader: Any = SimpleNamespace(states=states)
    it = OwnGpus(reader, every_s=0.01)
    try:
        assert [(view.healthy, view.free_bytes) for view in it.views(2)] == [(True, 9.0), (True, 0.0)]
        answers[0] = [GpuReading(0, healthy=True)]
        until(lambda: [view.healthy for view in it.views(2)] == [True, False])
        answers[0] = [GpuReading(0, healthy=True), GpuReading(1, healthy=True)]
        until(lambda: [view.healthy for view in it.views(2)] == [True, True])
        answers[0] = GpuLostError("the driver does not answer for once")
        asked.clear()
        asked.wait(60.0)
        assert [view.healthy for view in it.views(2)] == [True, True]
        answers[0] = None
        asked.clear()
        asked.wait(60.0)
        monkeypatch.setattr(own_gpus, "_SILENT_S", 0.2)
        until(lambda: not any(view.healthy for view in it.views(2)))
    finally:
        hangs.set()
        it.close()


def test_one_reading_alone_calls_no_gpu_faulty() -> None:
    readings = [[True, True], [False, True], [True, True], [False, True], [False, True], [False], [False], [True, True]]
    left = [[GpuReading(index, healthy=healthy) for index, healthy in enumerate(reading)] for reading in readings]
    reader: Any = SimpleNamespace(states=lambda: left.pop(0))
    it = OwnGpus(reader, every_s=1e9)
    seen = [[view.healthy for view in it.views(2)]]
    while left:
        it.read()
        seen.append([view.healthy for view in it.views(2)])
    it.close()
    yes, no = True, False
    assert seen == [[yes, yes], [yes, yes], [yes, yes], [yes, yes], [no, yes], [no, yes], [no, no], [yes, yes]]


def test_what_a_driver_does_not_say_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    reader: Any = SimpleNamespace(states=lambda: [][: hangs.wait(60.0)])
    monkeypatch.setattr(own_gpus, "_FIRST_WITHIN_S", 0.1)
    it = OwnGpus(reader)
    with pytest.raises(BackendError):
        it.views(1)
    monkeypatch.setattr(own_gpus, "open_nvml", lambda: hangs.wait(60.0) and reader_of([]))
    with pytest.raises(BackendError, match="does not answer"):
        own_gpus.open_own_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(BackendError, match="CUDA_VISIBLE_DEVICES"):
        own_gpus.open_own_gpus()
    assert own_gpus.own_gpus_of({os.uname().nodename: 4}) is None
    it.close()
    hangs.set()


def test_jobs_run_on_the_gpus_of_this_machine_and_not_on_one_that_is_lost(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.environment |= {"LD_LIBRARY_PATH": str(build_nvml(tmp_path)), "PYTHONPATH": PYTHON_PATH}
    served.start()
    try:
        (node,) = served.ask("/v1/nodes")
        assert (node["name"], len(node["gpus"]), node["slots"]) == (os.uname().nodename, 4, False)
        until(lambda: served.ask("/v1/nodes")[0]["faulty"] == [1, 3])  # of the one a memory error, the other is lost
        job = served.add("sh", "-c", "echo on $CUDA_VISIBLE_DEVICES", gpus=1)
        assert served.ended(job) == "succeeded"
        assert "serves 4 GPUs on 1 nodes" in (tmp_path / "serve.log").read_text()
        assert served.call("logs", job).stdout.strip() in ("on 0", "on 2")
    finally:
        served.end()
