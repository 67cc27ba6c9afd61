"""Checks of hardware on scripted GPUs, ports and logs: each fault with its verdict. No real GPU is used."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._C._distributed_c10d import FileStore, PrefixStore

from longshore.preflight import compute_checks, link_checks, warm_worker
from longshore.preflight.check import (
    ALL_ATTACHMENTS,
    Attachment,
    CheckedJob,
    CheckFinding,
    CheckOutcome,
    CheckStage,
    Need,
    chosen_checks,
)
from longshore.preflight.checks import dcgm_findings, fail_differing_versions
from longshore.preflight.compute_checks import fail_slow_products
from longshore.preflight.context import WHOLE_NODE, CheckGroup, CheckScope, Context
from longshore.preflight.readers import ClockLimits, GpuProcess, NvLink, Pcie, RemappedRows
from longshore.scheduler.model.job_spec import JobFile, checked_job_of
from tests.preflight.gpus import ScriptedGpu, ask, gpu, node, write_port

PASS, WARN, FAIL, INCOMPLETE, SKIPPED = CheckOutcome
SCRIPTED: list[tuple[str, Callable[[ScriptedGpu], None], CheckOutcome, str]] = [
    ("ecc.volatile", lambda it: setattr(it, "uncorrected_errors", 2), FAIL, "reset the GPU"),
    ("ecc.volatile", lambda it: setattr(it, "uncorrected_errors", None), SKIPPED, ""),
    (
        "rows.remap",
        lambda it: setattr(it, "rows", RemappedRows(0, 1, pending=True, failed=False)),
        FAIL,
        "reset the GPU",
    ),
    (
        "rows.remap",
        lambda it: setattr(it, "rows", RemappedRows(0, 9, pending=True, failed=True)),
        FAIL,
        "replace the GPU",
    ),
    ("rows.remap", lambda it: setattr(it, "rows", RemappedRows(3, 0, pending=False, failed=False)), PASS, ""),
    ("rows.remap", lambda it: setattr(it, "rows", None), SKIPPED, ""),
    ("pcie.link", lambda it: setattr(it, "pcie", Pcie(1, 8, 16)), FAIL, "reseat the card"),
    ("pcie.link", lambda it: setattr(it, "pcie", Pcie(1, 16, 16)), PASS, ""),
    ("pcie.link", lambda it: setattr(it, "pcie", None), SKIPPED, ""),
    ("clocks.thermal", lambda it: setattr(it, "clocks", ClockLimits(("hardware slowdown",))), FAIL, "cooling"),
    ("clocks.thermal", lambda it: setattr(it, "clocks", ClockLimits((), 200.0, 400.0)), WARN, "restore"),
    ("clocks.thermal", lambda it: setattr(it, "clocks", None), SKIPPED, ""),
    ("clocks.thermal", lambda it: setattr(it, "clocks", ClockLimits(None, 200.0, 400.0)), SKIPPED, ""),
    ("count.type", lambda it: setattr(it, "lost", True), FAIL, "restart the machine"),
    ("mem.disk", lambda it: setattr(it, "holders", [GpuProcess(1, 10**9)]), FAIL, "end what was left"),
    ("nvlink.state", lambda it: setattr(it, "nvlinks", None), SKIPPED, ""),
]


@pytest.mark.parametrize(("check", "spoil", "outcome", "action"), SCRIPTED)
def test_a_fault_of_a_chosen_gpu_has_its_verdict_and_what_to_do(
    check: str, spoil: Callable[[ScriptedGpu], None], outcome: CheckOutcome, action: str, tmp_path: Path
) -> None:
    gpus = [gpu(0), gpu(1), gpu(2)]
    spoil(gpus[1])
    found = {it.device: it for it in ask(node(tmp_path, gpus), check)}
    assert found["gpu 1"].outcome is outcome
    assert action in found["gpu 1"].action
    if outcome is FAIL:
        assert found["gpu 1"].got
        assert found["gpu 1"].wanted


@pytest.mark.parametrize(("check", "spoil", "outcome", "action"), SCRIPTED)
def test_the_same_fault_of_a_gpu_that_was_not_chosen_does_not_matter(
    check: str, spoil: Callable[[ScriptedGpu], None], outcome: CheckOutcome, action: str, tmp_path: Path
) -> None:
    gpus = [gpu(0), gpu(1), gpu(2)]
    spoil(gpus[2])
    assert not [it for it in ask(node(tmp_path, gpus), check) if it.outcome in (FAIL, INCOMPLETE)]


@pytest.mark.parametrize("check", ["ecc.volatile", "rows.remap", "pcie.link", "clocks.thermal"])
def test_a_gpu_that_is_lost_in_mid_check_is_no_pass(check: str, tmp_path: Path) -> None:
    gpus = [gpu(0), gpu(1)]
    gpus[1].lost = True
    assert ask(node(tmp_path, gpus), check)[-1].outcome is INCOMPLETE


def test_a_node_without_a_driver_is_no_pass_unless_slots_stand_for_its_gpus(tmp_path: Path) -> None:
    assert [it.outcome for it in ask(node(tmp_path), "ecc.volatile")] == [INCOMPLETE]
    assert [it.outcome for it in ask(node(tmp_path, slots=True), "ecc.volatile")] == [SKIPPED]


@pytest.mark.parametrize(("wanted", "outcome"), [("", PASS), ("a100", PASS), ("A100-SXM4", PASS), ("h100", FAIL)])
def test_a_gpu_of_another_type_than_the_workload_asks_for_fails(
    wanted: str, outcome: CheckOutcome, tmp_path: Path
) -> None:
    found = ask(node(tmp_path, [gpu(0)]), "count.type", (0,), CheckedJob(gpu_type=wanted))
    assert [it.outcome for it in found] == [outcome]


def test_too_little_free_memory_fails(tmp_path: Path) -> None:
    found = ask(node(tmp_path, [gpu(0)]), "mem.disk", (0,), CheckedJob(gpu_memory_bytes=100e9))
    assert [(it.device, it.outcome) for it in found] == [("gpu 0", FAIL), ("scratch", PASS)]


def test_memory_that_the_process_of_the_checks_holds_is_free_for_the_job(tmp_path: Path) -> None:
    one = gpu(0)
    one.holders = [GpuProcess(os.getpid(), 1 << 30)]  # what CUDA and the references take
    found = ask(node(tmp_path, [one]), "mem.disk", (0,), CheckedJob(gpu_memory_bytes=80 << 30))
    assert [(it.device, it.outcome) for it in found] == [("gpu 0", PASS), ("scratch", PASS)]


def links(recoveries: int = 0, *, active: bool = True, to: int = 1) -> list[NvLink]:
    return [NvLink(0, active, f"00000000:{to + 0x0F:02X}:00.0", recoveries, 0, 0)]


@pytest.mark.parametrize(("to", "outcome"), [(1, FAIL), (2, WARN), (99, FAIL)])
def test_a_link_counts_if_a_chosen_gpu_or_a_switch_is_behind_it(to: int, outcome: CheckOutcome, tmp_path: Path) -> None:
    gpus = [gpu(0), gpu(1), gpu(2)]
    gpus[0].nvlinks, gpus[1].nvlinks = links(active=False, to=to), links(to=0)
    context = node(tmp_path, gpus)
    assert [it.outcome for it in ask(context, "nvlink.errors")] == [SKIPPED, SKIPPED]  # nothing to compare with
    assert [it.outcome for it in ask(context, "nvlink.state")] == [outcome, PASS]
    gpus[0].nvlinks = links(0, to=to)
    assert [it.outcome for it in ask(context, "nvlink.errors")] == [PASS, PASS]
    gpus[0].nvlinks = links(1, to=to)
    assert [it.outcome for it in ask(context, "nvlink.errors")] == [outcome, PASS]


def test_a_link_whose_faults_are_not_counted_is_no_pass(tmp_path: Path) -> None:
    one = gpu(0)
    one.nvlinks = [NvLink(0, active=True, remote_pci="")]
    found = ask(node(tmp_path, [one]), "nvlink.errors", (0,))
    assert [(it.device, it.outcome) for it in found] == [("gpu 0 link 0", SKIPPED)]


def test_the_speed_of_many_gpus_is_measured_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(compute_checks, "SPEED_SIZE", 2)
    monkeypatch.setattr(Context, "torch_device", lambda *_: "cpu")
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: clock.__setitem__(0, clock[0] + 0.005))
    monkeypatch.setattr(compute_checks, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    gpus = tuple(range(16))
    found = ask(node(tmp_path, [gpu(it) for it in gpus]), "gemm.speed", gpus)
    assert {it.outcome for it in found} == {PASS}
    assert clock[0] < 0.8 * compute_checks.FAST_CHECK.limit_s


def test_links_that_a_workload_does_not_use_are_not_checked(tmp_path: Path) -> None:
    gpus = [gpu(0), gpu(1)]
    gpus[0].nvlinks = links(active=False)
    found = ask(node(tmp_path, gpus), "nvlink.state", workload=CheckedJob(attachments=("host",)))
    assert [it.outcome for it in found] == [SKIPPED]


@pytest.mark.parametrize("used", [("host",), ("nic", "host"), ("nvlink",), ALL_ATTACHMENTS])
def test_a_job_file_decides_which_links_are_checked(used: tuple[Attachment, ...]) -> None:
    job = JobFile.model_validate({"command": ("true",), "attachments": (*used, used[0])[:3]})
    needs = {need for stage in CheckStage for it in chosen_checks(stage, 3, checked_job_of(job)) for need in it.needs}
    kinds = {Need.HOST: "host", Need.NIC: "nic", Need.NVLINK: "nvlink"}
    assert {kinds[need] for need in needs & kinds.keys()} == set(used)


WIRING = """
nodes:
  n1:
    ports:
      mlx5_0/1: {gpus: [0, 1]}
      mlx5_1/1: {gpus: [2, 3]}
"""


@pytest.mark.parametrize(("port", "outcome"), [("mlx5_0/1", FAIL), ("mlx5_1/1", WARN), ("mlx5_2/1", WARN)])
def test_a_link_that_goes_down_fails_in_the_subset_and_is_reported_outside_of_it(
    port: str, outcome: CheckOutcome, tmp_path: Path
) -> None:
    root, wiring = tmp_path / "infiniband", tmp_path / "wiring.yaml"
    wiring.write_text(WIRING)
    for name in ("mlx5_0/1", "mlx5_1/1", "mlx5_2/1"):
        write_port(root, name, link_downed=3, symbol_error=0)
    context = node(tmp_path, wiring=wiring)
    assert {it.outcome for it in ask(context, "nic.errors")} == {SKIPPED}  # nothing to compare with
    write_port(root, port, link_downed=4)
    found = {it.device: it for it in ask(context, "nic.errors")}
    assert found[port].outcome is outcome
    assert "link_downed rose from 3 to 4" in found[port].got
    write_port(root, port, state="1: DOWN", physical="3: Disabled")
    assert {it.device: it.outcome for it in ask(context, "nic.state")}[port] is outcome


def test_a_counter_that_falls_is_a_driver_that_was_loaded_anew(tmp_path: Path) -> None:
    context = node(tmp_path)
    for value, outcome in ((9, SKIPPED), (2, PASS), (2, PASS), (3, FAIL)):
        write_port(tmp_path / "infiniband", "mlx5_0/1", link_downed=value)
        assert [it.outcome for it in ask(context, "nic.errors")] == [outcome]


def test_counters_that_rise_within_the_first_round_of_a_process_are_a_fault(tmp_path: Path) -> None:
    one = gpu(0)
    one.nvlinks = links(3)
    write_port(tmp_path / "infiniband", "mlx5_0/1", symbol_error=10**6)
    context = node(tmp_path, [one])
    ask(context, "nvlink.state", (0,))
    ask(context, "nic.state", (0,))
    one.nvlinks = links(4)
    write_port(tmp_path / "infiniband", "mlx5_0/1", symbol_error=10**6 + 100)
    ask(context, "nic.state", (0,))  # a second reading of the state hides nothing
    assert [it.outcome for check in ("nvlink.errors", "nic.errors") for it in ask(context, check, (0,))] == [FAIL, FAIL]


@pytest.mark.parametrize(("own", "before", "outcome"), [("a", "b", FAIL), ("a", "a", PASS), ("", "", FAIL)])
def test_ranks_of_one_node_are_not_held_to_the_bandwidth_between_nodes(
    own: str, before: str, outcome: CheckOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_checks, "_receive_bytes_per_s", lambda *_: 1e9)
    store = FileStore(str(tmp_path / "g"), 2)
    PrefixStore("g-nodes", store).set("0", before)
    context = node(tmp_path, None, slots=True)
    context.workload, context.chosen = CheckedJob(link_bytes_per_s=12.5e9), CheckScope((0,), ("n1",), 1, 60.0)
    context.group = CheckGroup("g", ("n0", "n1"), (1, 1), str(tmp_path), node=own)
    (found,) = link_checks.measure_bandwidth(context)
    assert (found.outcome, found.got) == (outcome, "1 GB/s")


def test_a_few_symbol_errors_are_no_fault(tmp_path: Path) -> None:
    context = node(tmp_path)
    for value, outcome in ((0, SKIPPED), (5, PASS), (50, FAIL)):
        write_port(tmp_path / "infiniband", "mlx5_0/1", symbol_error=value)
        assert [it.outcome for it in ask(context, "nic.errors")] == [outcome]


XIDS = [
    (13, None), (31, None), (43, None), (45, None), (63, WARN), (92, WARN), (94, WARN), (4242, WARN), (46, FAIL),
    (48, FAIL), (62, FAIL), (64, FAIL), (74, FAIL), (79, FAIL), (95, FAIL), (109, FAIL), (119, FAIL), (140, FAIL),
    (144, FAIL), (158, FAIL),
]  # fmt: skip


@pytest.mark.parametrize(("number", "outcome"), XIDS)
def test_a_fault_in_the_log_has_the_verdict_of_its_number(
    number: int, outcome: CheckOutcome | None, tmp_path: Path
) -> None:
    log = tmp_path / "kmsg"
    log.write_text(f"6,1,5000000,-;NVRM: Xid (PCI:0000:10:00): {number}, pid=1, name=python\n6,2,6000000,-;other\n")
    context = node(tmp_path, [gpu(0), gpu(1)])
    found = ask(context, "xid.recent")
    assert [it.outcome for it in found] == ([] if outcome is None else [outcome])
    assert all(it.device == "gpu 1" and f"Xid {number}" in it.got and it.action for it in found)
    at_s = time.time() - time.monotonic() + 5.0
    for place, is_outdated in ((1, True), (WHOLE_NODE, True), (0, False)):  # what came before never acts again
        assert ask(context, "xid.recent", cleared_s={place: at_s + 1.0}) == ([] if is_outdated else found)
        assert ask(context, "xid.recent", cleared_s={place: at_s - 1.0}) == found
    outside = [it.outcome for it in ask(context, "xid.recent", (0,))]
    assert FAIL not in outside or number == 79  # that one takes the machine with it


def test_a_log_that_may_not_be_read_is_skipped_and_reports_that(tmp_path: Path) -> None:
    (found,) = ask(node(tmp_path, kernel_log=tmp_path / "none"), "xid.recent")
    assert found.outcome is SKIPPED
    assert "run as root" in found.reason


def reported(**texts: str) -> dict[str, CheckFinding]:
    return {node: CheckFinding(PASS, text=text) for node, text in texts.items()}


@pytest.mark.parametrize(
    ("texts", "bad"),
    [
        ({"a": "1", "b": "1", "c": "1"}, set()),
        ({"a": "1", "b": "2", "c": "1"}, {"b"}),
        ({"a": "1", "b": "2"}, {"a", "b"}),
        ({"a": "1", "b": "2", "c": "3"}, {"a", "b", "c"}),
        ({"a": "1", "b": "1", "c": "2", "d": "3"}, {"c", "d"}),
    ],
)
def test_a_node_with_another_driver_than_most_fails(texts: dict[str, str], bad: set[str]) -> None:
    assert set(fail_differing_versions(reported(**texts))) == bad


def test_a_node_that_computes_at_less_than_nine_tenths_of_the_median_fails() -> None:
    rates = {"a": 1.0, "b": 0.89, "c": 0.91, "d": 1.1}
    assert set(fail_slow_products({node: CheckFinding(PASS, figure=rate) for node, rate in rates.items()})) == {"b"}


DCGM = """{"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [
  {"name": "Denylist", "results": [{"status": "Pass"}]},
  {"name": "PCIe", "results": [{"gpu_id": "0", "status": "Pass"},
                               {"gpu_id": "1", "status": "Fail", "warnings": [{"warning": "replays"}]}]}]}]}}"""


def test_diagnostics_of_the_vendor_are_reported_test_by_test() -> None:
    found = {it.device: it.outcome for it in dcgm_findings(DCGM)}
    assert found == {"Denylist": PASS, "gpu 0 PCIe": PASS, "gpu 1 PCIe": FAIL}


@pytest.mark.parametrize("output", ["", "Error: unable to connect", "{}", "[1, 2]", '{"name": "x", "results": [{}]}'])
def test_diagnostics_without_results_are_no_pass(output: str) -> None:
    assert {it.outcome for it in dcgm_findings(output)} == {INCOMPLETE}


def test_a_gpu_that_was_replaced_is_reported(tmp_path: Path) -> None:
    wiring = tmp_path / "wiring.yaml"
    wiring.write_text("nodes: {n1: {gpus: {0: GPU-0, 1: GPU-old}}}")
    found = {it.device: it.outcome for it in ask(node(tmp_path, [gpu(0), gpu(1)], wiring=wiring), "count.type")}
    assert found == {"gpu 0": PASS, "gpu 1": FAIL}


def test_leftover_memory_after_a_job_keeps_the_node_out_of_service(tmp_path: Path) -> None:
    gpus = [gpu(0), gpu(1)]
    gpus[1].holders = [GpuProcess(4321, 3 * 10**9)]
    found = [it for it in ask(node(tmp_path, gpus), "post.reset") if it.outcome is FAIL]
    assert [it.device for it in found] == ["gpu 1"]
    assert "process 4321 with 3 GB" in found[0].got
    assert "out of service" in found[0].action


def test_what_the_process_of_the_checks_holds_itself_is_no_leftover(tmp_path: Path) -> None:
    one = gpu(0)
    one.holders = [GpuProcess(os.getpid(), 10**8)]
    assert FAIL not in {it.outcome for it in ask(node(tmp_path, [one]), "post.reset", (0,))}


@pytest.mark.parametrize(("resets", "outcome"), [(True, PASS), (None, SKIPPED), (False, FAIL)])
def test_clocks_that_cannot_be_restored_are_reported(
    *, resets: bool | None, outcome: CheckOutcome, tmp_path: Path
) -> None:
    one = replace(gpu(0), resets=resets)
    assert ask(node(tmp_path, [one]), "post.reset", (0,), CheckedJob(clock_mhz=1410))[-1].outcome is outcome


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, [0, 1, 2, 3]),
        ("2,3", [2, 3]),
        ("3", [3]),
        (" 1, 0", [1, 0]),
        ("GPU-2", [2]),
        ("GPU-3,GPU-0", [3, 0]),
        ("1,-1,0", [1]),
        ("1,GPU-9,0", [1]),
        ("GPU-", []),  # any of them
        ("-1", []),
        ("", []),
        ("nonsense", []),
    ],
)
def test_a_gpu_is_the_same_to_cuda_and_to_nvml_or_the_check_is_incomplete(
    visible: str | None, shown: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    context = node(tmp_path, [gpu(it) for it in range(4)])
    assert [context.torch_device(it) for it in shown] == [f"cuda:{at}" for at in range(len(shown))]
    for hidden in {0, 1, 2, 3} - set(shown):
        (found,) = ask(context, "job.sample", [hidden])
        assert found.outcome is INCOMPLETE
        assert f"does not show gpu {hidden}" in found.reason


@pytest.mark.parametrize(
    ("place", "visible", "used"),
    [
        ({}, None, (0, 1, 2, 3)),
        ({}, "2,3", (2, 3)),
        ({}, "GPU-1", (1,)),
        ({"warmed": (3,)}, None, (3,)),  # of a rank that checks travel with: its neighbours' are theirs
        ({"warmed": (3,)}, "3", (3,)),
        ({"slots": True}, None, (0,)),
    ],
)
def test_a_process_warms_up_on_its_own_gpus_alone_and_rounds_as_the_tolerance_assumes(
    place: Mapping[str, object],
    visible: str | None,
    used: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    reported: list[object] = []

    def note(context: Context) -> list[CheckFinding]:
        reported.append(context.chosen.gpus)
        return []

    monkeypatch.setattr(warm_worker, "set_product_precision", lambda: reported.append("set"))
    monkeypatch.setattr(warm_worker, "find_check", lambda name: SimpleNamespace(run=note))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    warm_worker._warm_up(node(tmp_path, [gpu(it) for it in range(4)], **place))
    assert reported == ["set", used, used]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("lazy", [None, 0, 1])
def test_a_gpu_to_which_nothing_is_copied_is_found_also_behind_one_that_is_well(
    lazy: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The processor stands for GPUs here, so nothing is pinned and no stream is waited for.
    asked: list[str] = []
    copy = torch.Tensor.copy_

    def copied(to: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> torch.Tensor:
        assert non_blocking
        asked.append("copy")
        return to if lazy is not None and (len(asked) - 1) // 2 == lazy else copy(to, source)

    monkeypatch.setattr(Context, "torch_device", lambda _, gpu: "cpu")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda it: it)
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda where: None)
    found = {it.device: it.outcome for it in ask(node(tmp_path, [gpu(0), gpu(1)]), "copy.h2d")}
    assert found == {f"gpu {it}": FAIL if it == lazy else PASS for it in (0, 1)}
