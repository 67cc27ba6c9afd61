"""Checks, readers and NCCL on a real GPU; without one these tests are skipped."""

import os
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from longshore.cluster.files.errors import BackendError
from longshore.cluster.files.processes import free_port
from longshore.preflight.readers import GpuReader, open_nvml
from longshore.ring import groups
from longshore.ring.groups import LinkError, RingGroup
from longshore.ring.member_client import MemberClient, Pulse
from longshore.ring.wire import RingLayout, SeatAssignment
from tests.support import processes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")


@pytest.fixture
def reader() -> GpuReader:
    try:
        found = open_nvml()
    except BackendError as error:
        pytest.skip(str(error))
    if found.memory_holders(0):
        pytest.skip("another process is on the GPU, such as another test")
    return found


def checked(*options: str, **environment: str) -> processes.CompletedProcess[str]:
    command = [sys.executable, "-m", "longshore.preflight", *options, "--", "echo", "ran"]
    clean = {name: it for name, it in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return processes.run(command, env=clean | environment, capture_output=True, timeout_s=300, check=False)


def test_everything_that_can_be_read_is_read_from_a_gpu(reader: GpuReader) -> None:
    first = reader.gpus()[0]
    assert reader.count() == len(reader.gpus())
    assert first.uuid.startswith(("GPU-", "MIG-"))
    assert 0 < first.free_bytes <= first.memory_bytes
    assert reader.driver_versions().driver
    for read in (
        reader.uncorrected_errors,
        reader.remapped_rows,
        reader.pcie,
        reader.nvlinks,
        reader.clock_limits,
        reader.memory_holders,
    ):
        read(0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_checks_that_travel_pass_on_a_gpu_that_is_well(dtype: str, reader: GpuReader) -> None:
    for visible in ("0", reader.gpus()[0].uuid):
        done = checked("--dtype", dtype, "--backend", "nccl", CUDA_VISIBLE_DEVICES=visible, LONGSHORE_GPUS="5")
        assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


def test_a_gpu_that_is_not_shown_is_reported(reader: GpuReader) -> None:
    assert reader.count()
    done = checked(CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "CUDA_VISIBLE_DEVICES does not show gpu 0" in done.stderr


def test_a_process_that_holds_memory_of_the_gpu_is_named(reader: GpuReader) -> None:
    held = torch.ones(1 << 26, device="cuda")
    torch.cuda.synchronize()
    if os.getpid() not in {it.pid for it in reader.memory_holders(0) or ()}:
        pytest.skip("the driver reports process ids of another namespace")
    done = checked()
    assert done.returncode == 3
    assert f"process {os.getpid()} with" in done.stderr
    assert held[0] == 1.0


@pytest.mark.skipif(not dist.is_nccl_available(), reason="this PyTorch has no NCCL")
def test_sums_over_nccl_end_and_what_comes_after_a_close_is_a_broken_link() -> None:
    port, gpu = free_port(), torch.device("cuda", 0)
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    form = RingLayout(1, 1, [SeatAssignment(0, 0, [0])], 0, [], f"127.0.0.1:{port}")
    control = cast("MemberClient", SimpleNamespace(pulse=Pulse(), wait_for_lease=lambda: None))
    exchanges = {"broadcast": lambda *_: None, "begin_broadcast": lambda *_: None}
    host = cast("RingGroup", SimpleNamespace(close=lambda: None, rank=0, size=1, ends=[], **exchanges))
    group = groups.NcclGroup(host, lambda: groups.connect_nccl(form, 0, gpu), control)
    tensor = torch.arange(1 << 20, device=gpu, dtype=torch.float32)
    expected: Any = tensor.clone()
    for _ in range(20):
        group.sum(tensor)
    assert torch.equal(tensor, expected)
    assert (control.pulse.moved, control.pulse.waiting) == (20, False)
    group.close()
    with pytest.raises(LinkError):
        group.sum(tensor)
    del store
