"""The reader of NVML against a C library of our own in place of NVIDIA's; no real driver is asked."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.preflight.nvml_library import build_nvml
from tests.support import processes
from tests.support.processes import PYTHON_PATH

CLUSTER = """
node_types: {boards: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9}}
racks: [{nodes: [{type: boards, name: a}]}]
"""
READ = """
from longshore.preflight.readers import GpuLostError
from longshore.preflight.readers import open_nvml

reader = open_nvml()
print(reader.driver_versions())
for gpu in reader.gpus():
    print(gpu)
for gpu in range(4):
    for read in (reader.uncorrected_errors, reader.remapped_rows, reader.pcie, reader.nvlinks, reader.clock_limits,
                 reader.memory_holders, reader.reset_clock):
        try:
            print(gpu, read.__name__, read(gpu))
        except GpuLostError as error:
            print(gpu, read.__name__, "lost")
"""
REPORTED = """\
DriverVersions(driver='580.65.06', library='13.580.65', firmware='96.00')
GpuInfo(index=0, uuid='GPU-0', name='NVIDIA H100', pci='00000000:0F:00.0', memory_bytes=85899345920, \
free_bytes=84825604096)
GpuInfo(index=1, uuid='GPU-1', name='NVIDIA H100', pci='00000000:10:00.0', memory_bytes=85899345920, \
free_bytes=84825604096)
GpuInfo(index=2, uuid='GPU-2', name='NVIDIA H100', pci='00000000:11:00.0', memory_bytes=85899345920, \
free_bytes=84825604096)
0 uncorrected_errors 0
0 remapped_rows RemappedRows(corrected=1, uncorrected=2, pending=False, failed=False)
0 pcie Pcie(generation=5, width=8, max_width=16)
0 nvlinks [NvLink(link=0, active=True, remote_pci='00000000:10:00.0', recoveries=10, replays=0, crc_errors=20), \
NvLink(link=1, active=False, remote_pci='00000000:10:00.0', recoveries=11, replays=1, crc_errors=21)]
0 clock_limits ClockLimits(reasons=(), power_limit_w=400.0, default_power_limit_w=700.0)
0 memory_holders []
0 reset_clock None
1 uncorrected_errors 1
1 remapped_rows RemappedRows(corrected=1, uncorrected=2, pending=True, failed=False)
1 pcie Pcie(generation=5, width=8, max_width=16)
1 nvlinks [NvLink(link=0, active=True, remote_pci='00000000:0F:00.0', recoveries=10, replays=0, crc_errors=20), \
NvLink(link=1, active=False, remote_pci='00000000:0F:00.0', recoveries=11, replays=1, crc_errors=21)]
1 clock_limits ClockLimits(reasons=('hardware thermal slowdown',), power_limit_w=400.0, default_power_limit_w=700.0)
1 memory_holders [GpuProcess(pid=4321, bytes=1073741824)]
1 reset_clock None
2 uncorrected_errors None
2 remapped_rows None
2 pcie None
2 nvlinks None
2 clock_limits None
2 memory_holders None
2 reset_clock None
3 uncorrected_errors lost
3 remapped_rows lost
3 pcie lost
3 nvlinks lost
3 clock_limits lost
3 memory_holders lost
3 reset_clock lost
"""
RUN_CHECKS = """
from pathlib import Path
from longshore.preflight.context import NodeSetup, open_context
from tests.preflight.gpus import ask

for check in ("rows.remap", "ecc.volatile", "clocks.thermal", "pcie.link"):
    for it in ask(open_context(NodeSetup("n1", Path())), check, (0, 1, 2)):
        print(*filter(None, (check, it.device, it.outcome, it.got or it.reason, it.action)), sep=" | ")
"""
FINDINGS = """\
rows.remap | gpu 0 | pass | 3 rows remapped
rows.remap | gpu 1 | fail | a memory row waits to be remapped | reset the GPU
rows.remap | gpu 2 | skipped | the GPU does not report it
ecc.volatile | gpu 0 | pass
ecc.volatile | gpu 1 | fail | 1 uncorrected errors | reset the GPU; replace it if they return
ecc.volatile | gpu 2 | skipped | the GPU does not report it
clocks.thermal | gpu 0 | warn | a power limit of 400 W | restore it: nvidia-smi -pl
clocks.thermal | gpu 1 | fail | hardware thermal slowdown | check cooling and power
clocks.thermal | gpu 2 | skipped | the GPU does not report it
pcie.link | gpu 0 | fail | width 8, generation 5 | reseat the card; replace the riser
pcie.link | gpu 1 | fail | width 8, generation 5 | reseat the card; replace the riser
pcie.link | gpu 2 | skipped | the GPU does not report it
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return build_nvml(tmp_path)


def test_what_nvml_reports_is_read_and_what_it_does_not_support_is_none(library: Path) -> None:
    assert message(library, READ) == REPORTED


def test_what_nvml_reports_has_its_verdict_and_what_it_does_not_support_is_skipped(library: Path) -> None:
    assert message(library, RUN_CHECKS) == FINDINGS


@pytest.mark.full
def test_without_a_cluster_file_this_machine_is_checked_with_its_gpus(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    done = preflight(library, "--folder", folder)
    assert "no GPU answers here" not in done.stderr
    reported = json.loads(done.stdout)
    assert reported["nodes"] == [os.uname().nodename]
    answers = {it["device"]: it["outcome"] for it in reported["results"] if it["check"] == "count.type"}
    assert answers == {"gpu 0": "pass", "gpu 1": "pass", "gpu 2": "pass", "gpu 3": "fail"}  # the last is lost
    assert not (folder / "cluster.yaml").exists()
    (folder / "cluster.yaml").write_text(CLUSTER)
    assert json.loads(preflight(library, "--folder", folder).stdout)["nodes"] == ["a"]


def preflight(library: Path, *options: str | Path) -> processes.CompletedProcess[str]:
    command = [sys.executable, "-m", "longshore", "preflight", "--level", "0", "--json", *options]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    return processes.run(command, env=environment, capture_output=True, check=False)


def message(library: Path, code: str) -> str:
    """Return the output of a program that finds this library in place of NVML."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": PYTHON_PATH}
    done = processes.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.stderr == ""
    return done.stdout
