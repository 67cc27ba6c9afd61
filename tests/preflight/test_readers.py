"""Readers of sysfs and of the kernel's log on what is there, what is not, and what makes no sense."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.preflight.context import Context, NodeSetup
from longshore.preflight.readers import XidLine, is_line_of_gpu, read_kernel_log, read_ports, xid_lines
from tests.preflight.gpus import write_port


def test_a_port_is_read_as_sysfs_has_it(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0/1", link_downed=2)
    (port,) = read_ports(tmp_path)
    assert (port.name, port.state, port.physical, port.rate) == ("mlx5_0/1", "ACTIVE", "LinkUp", "400 Gb/sec (4X NDR)")
    assert port.counters == {"link_downed": 2}


def test_a_machine_without_ports_has_none(tmp_path: Path) -> None:
    assert read_ports(tmp_path / "infiniband") == []


@pytest.mark.parametrize("content", [b"", b"N/A (no PMA)\n", b"\xff\xfe", b"-", b"9" * 5000, b"1e9"])
def test_what_is_invalid_in_a_counter_is_left_out(content: bytes, tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0/1", symbol_error=1)
    (tmp_path / "mlx5_0/ports/1/counters/link_downed").write_bytes(content)
    (tmp_path / "mlx5_0/ports/1/state").write_bytes(content)
    (port,) = read_ports(tmp_path)
    assert port.counters == {"symbol_error": 1}
    assert port.state != "ACTIVE"


@given(st.lists(st.integers(0, 2**64), min_size=1))
def test_counters_rise_by_what_was_added_since_the_last_fall(values: list[int]) -> None:
    context, before = Context(NodeSetup("n1", Path()), None), values[0]
    assert context.update_counters("port", {"link_downed": before}) == {}
    for now in values:
        was, seen = context.update_counters("port", {"link_downed": now})["link_downed"]
        assert seen == now
        assert now - was == max(0, now - before)
        before = now


@given(st.lists(st.text()))
def test_no_line_of_a_log_is_too_strange(lines: list[str]) -> None:
    xid_lines(lines)


def test_faults_are_found_in_lines_with_and_without_a_head() -> None:
    lines = ["4,77,12500000,-;NVRM: Xid (PCI:0000:0F:00): 94, pid='<unknown>'", "NVRM: Xid (PCI:0000:0f:00): 79", "Xid"]
    assert [(it.at_s, it.pci, it.number) for it in xid_lines(lines)] == [
        (12.5, "0000:0f:00", 94),
        (0.0, "0000:0f:00", 79),
    ]


@pytest.mark.parametrize(
    ("pci", "same"),
    [("00000000:0F:00.0", True), ("0000:0f:00.0", True), ("00000001:0F:00.0", False), ("00000000:1F:00.0", False)],
)
def test_a_fault_belongs_to_the_gpu_at_its_address(pci: str, same: bool) -> None:  # noqa: FBT001
    assert is_line_of_gpu(pci, XidLine(0.0, "0000:0f:00", 79, "")) == same


def test_a_log_is_read_to_its_end_and_a_pipe_without_a_writer_does_not_hang(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("a\n" * 10_000 + "last, without an end")
    assert read_kernel_log(log) == ["a"] * 10_000 + ["last, without an end"]
    os.mkfifo(tmp_path / "pipe")
    assert read_kernel_log(tmp_path / "pipe") == []
    assert read_kernel_log(tmp_path / "none") is None
