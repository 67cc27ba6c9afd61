"""A job's own checks: its sample, its settings of GPUs, and their results."""

import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.cluster.files.processes import living
from longshore.cluster.model.placement import Share
from longshore.preflight.check import (
    JOB_SAMPLE,
    CheckedJob,
    CheckOutcome,
    CheckResult,
    RoundReport,
    check_limit_s,
    find_check,
)
from longshore.preflight.compute_checks import OF_WHOLE_JOB, _sample_environment
from longshore.preflight.context import CheckScope
from longshore.preflight.readers import ClockLimits
from longshore.preflight.travelling import wrap_command
from longshore.preflight.warm_worker import CheckRequest, run_check
from longshore.scheduler.control.node_checks import quarantine_findings
from longshore.scheduler.model.job_spec import JobFile, checked_job_of
from tests.preflight.gpus import ScriptedGpu, ask, gpu, node
from tests.scheduler.served import until

PASS, WARN, FAIL, INCOMPLETE = CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.FAIL, CheckOutcome.INCOMPLETE


def sampled(folder: Path, script: str, limit_s: float = 30.0, **workload: object) -> tuple[CheckOutcome, str]:
    """Return the outcome of a sample on a node of slots, and its evidence."""
    whole = CheckedJob(sample=(sys.executable, "-c", script), **workload)  # type: ignore[arg-type]
    chosen = CheckScope((0, 1), ("n1",), 1, limit_s)
    context = node(folder, None, slots=True)
    (found,) = run_check(CheckRequest(number=1, check=JOB_SAMPLE, chosen=chosen, workload=whole), context)
    return found.outcome, found.got or found.reason


SAY = "import os, json; print('begin'); print(json.dumps({'losses': [2.0, %s]}))"


@pytest.mark.parametrize(
    ("script", "outcome", "words"),
    [
        (SAY % "1.5", PASS, "loss 1.5 after"),
        (SAY % "float('nan')", FAIL, "nan"),
        (SAY % "float('inf')", FAIL, "inf"),
        ("print('{\"losses\": []}')", INCOMPLETE, "printed no losses"),
        ("print('{\"losses\": 1}')", INCOMPLETE, "printed no losses"),
        ("print('[1.0]')", INCOMPLETE, "printed no losses"),
        ("print('no JSON')", INCOMPLETE, "printed no losses"),
        ("pass", INCOMPLETE, "printed no losses"),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", INCOMPLETE, "printed no losses"),
        ("import sys; sys.exit('out of memory')", INCOMPLETE, "ended with 1: out of memory"),
        ("import os; os.kill(os.getpid(), 9)", INCOMPLETE, "ended with -9"),
    ],
)
def test_a_sample_passes_if_its_last_line_has_finite_losses(
    script: str, outcome: CheckOutcome, words: str, tmp_path: Path
) -> None:
    found, reported = sampled(tmp_path, script)
    assert found is outcome
    assert words in reported


def test_a_sample_is_reported_its_gpus_and_has_the_environment_and_the_folder_of_the_job(tmp_path: Path) -> None:
    names = ("ASKED", "LONGSHORE_NODE", "LONGSHORE_GPUS", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE")
    script = (
        f"import os; open('environment', 'w').write(' '.join(os.environ.get(it, '-') for it in {names})); {SAY % 1}"
    )
    asked = (("ASKED", "for"), ("CUDA_VISIBLE_DEVICES", "7"), ("RANK", "5"))
    assert sampled(tmp_path, script, sample_folder=str(tmp_path), environment=asked)[0] is PASS
    assert (tmp_path / "environment").read_text() == "for n1 0,1  0 1"


def test_the_sample_of_a_rank_meets_no_other_one_and_reports_nothing_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STEPS", "SAVED", "PROGRESS"):
        monkeypatch.setenv(f"LONGSHORE_{name}", str(tmp_path / name))
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("OWN", "\udcff")  # its bytes are no UTF-8
    context = node(tmp_path, None, slots=True, warmed=(0,))
    context.workload, context.chosen = CheckedJob(sample=("x",)), CheckScope((0,), ("n1",), 1, 1.0)
    found = [_sample_environment(context) for _ in range(2)]
    for environment in found:
        assert environment["OWN"] == "\udcff"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert not [it for it in environment if it.startswith(("TORCHELASTIC_", *OF_WHOLE_JOB))]
    assert "29500" not in {it["MASTER_PORT"] for it in found}


def test_a_sample_that_hangs_is_ended_with_all_that_it_started_before_its_limit(tmp_path: Path) -> None:
    script = (
        "import subprocess; it = subprocess.Popen(['sleep', '600']); open('pid', 'w').write(str(it.pid)); it.wait()"
    )
    began_s = time.monotonic()
    outcome, reported = sampled(tmp_path, script, 1.5, sample_folder=str(tmp_path))
    assert outcome is INCOMPLETE
    assert "took longer than 1 s" in reported
    assert time.monotonic() - began_s < 60.0
    pid = int((tmp_path / "pid").read_text())
    until(lambda: all(it.pid != pid for it in living()))  # on a busy machine a kill takes its time


@pytest.mark.parametrize("command", [("/no/such/program",), ("/",)])
def test_a_sample_that_cannot_be_run_is_reported(command: tuple[str, ...], tmp_path: Path) -> None:
    (found,) = ask(node(tmp_path, None, slots=True), JOB_SAMPLE, (0,), CheckedJob(sample=command))
    assert found.outcome is INCOMPLETE
    assert "the job's sample cannot be run" in found.reason


def test_only_a_sample_of_its_own_has_the_time_that_the_job_file_gives_it() -> None:
    check = find_check(JOB_SAMPLE)
    own = checked_job_of(JobFile.model_validate({"command": ["x"], "sample": {"command": ["y"], "limit_s": 90}}))
    assert (own.sample, check_limit_s(check, 1, own)) == (("y",), 90.0)
    assert check_limit_s(check, 1, CheckedJob()) == check.limit_s_at(1)
    assert check_limit_s(find_check("gemm.ref"), 1, own) == find_check("gemm.ref").limit_s_at(1)


def test_what_a_sample_of_the_job_finds_puts_nothing_into_quarantine() -> None:
    results = [CheckResult(JOB_SAMPLE, "a", FAIL, got="nan"), CheckResult("mem.disk", "a", FAIL, got="full")]
    report, placement = RoundReport(("a",), tuple(results)), (Share("a", (0,)),)
    assert [it.check for it in quarantine_findings(report, placement, 1.0)] == [JOB_SAMPLE, "mem.disk"]
    assert [it.check for it in quarantine_findings(report, placement, 1.0, {JOB_SAMPLE})] == ["mem.disk"]
    assert not report.passed


SETTINGS = CheckedJob(clock_mhz=1410, power_w=300.5)


CAPPED = ClockLimits((), power_limit_w=500.0, default_power_limit_w=700.0)  # by an administrator


def settings_of(one: ScriptedGpu) -> tuple[int, float | None]:
    return one.clock_mhz, None if one.clocks is None else one.clocks.power_limit_w


@pytest.mark.parametrize("reasons", [(), None])  # a driver may not report why a GPU is slow
@pytest.mark.parametrize(
    ("workload", "during"),
    [
        (SETTINGS, (1410, 300.5)), (CheckedJob(clock_mhz=1410), (1410, 500.0)),
        (CheckedJob(power_w=300.5), (900, 300.5)), (CheckedJob(), (900, 500.0)),
    ],
)  # fmt: skip
def test_gpus_are_set_as_the_job_asks_and_what_it_has_set_is_restored(
    workload: CheckedJob, during: tuple[int, float], reasons: tuple[str, ...] | None, tmp_path: Path
) -> None:
    gpus = [replace(gpu(it), clocks=replace(CAPPED, reasons=reasons), clock_mhz=900) for it in range(3)]
    context = node(tmp_path, gpus)
    ask(context, "gpu.settings", (0, 2), workload)
    assert [settings_of(it) for it in gpus] == [during, (900, 500.0), during]
    ask(context, "post.reset", (0, 2), workload)
    ask(context, "post.reset", (0, 2), CheckedJob())  # of the next job, which sets nothing
    after = (0 if workload.clock_mhz else 900, 500.0)
    assert [settings_of(it) for it in gpus] == [after, (900, 500.0), after]


def test_a_power_limit_is_that_of_the_factory_where_the_one_before_is_unknown(tmp_path: Path) -> None:
    one = replace(gpu(0), clocks=replace(CAPPED, power_limit_w=300.5))
    ask(node(tmp_path, [one]), "post.reset", (0,), SETTINGS)  # another process than the one that set it
    assert settings_of(one) == (0, 700.0)


@pytest.mark.parametrize("sets", [None, False])
def test_a_gpu_that_cannot_be_set_is_reported_and_is_fit(*, sets: bool | None, tmp_path: Path) -> None:
    found = ask(node(tmp_path, [replace(gpu(0), sets=sets)]), "gpu.settings", (0,), SETTINGS)
    assert [(it.device, it.outcome) for it in found] == [("gpu 0", WARN), ("gpu 0", WARN)]


def test_no_gpu_is_set_unasked_or_where_slots_stand_for_gpus(tmp_path: Path) -> None:
    one = gpu(0)
    (found,) = ask(node(tmp_path, [one]), "gpu.settings", (0,))
    assert found.outcome is CheckOutcome.SKIPPED
    (found,) = ask(node(tmp_path, None, slots=True), "gpu.settings", (0,), SETTINGS)
    assert found.outcome is CheckOutcome.SKIPPED
    assert one.clock_mhz == 0


def test_what_a_job_asks_of_its_checks_travels_with_it() -> None:
    spec = JobFile.model_validate({
        "command": ["train"], "sample": {"command": ["two", "steps"], "limit_s": 9},
        "gpu_settings": {"clock_mhz": 1410, "power_w": 300},
    })  # fmt: skip
    line = wrap_command(spec.command, checked_job_of(spec, link_bytes_per_s=1e9), slots=False, scratch=Path("/scratch"))
    reported = dict(itertools.pairwise(line))
    assert (reported["--sample"], reported["--sample-limit"]) == ('["two", "steps"]', "9.0")
    assert (reported["--gpu-clock"], reported["--gpu-power"]) == ("1410", "300.0")
    assert (reported["--link-bytes-per-s"], reported["--scratch"], reported["--"]) == (
        "1000000000.0",
        "/scratch",
        "train",
    )
    bare = wrap_command(("train",), CheckedJob(), slots=False)
    assert not any(it.startswith(("--sample", "--gpu", "--link", "--scratch")) for it in bare)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample": {"command": []}}, {"sample": {"command": ["x"], "limit_s": 0}}, {"sample": {"command": "x"}},
        {"sample": {}}, {"gpu_settings": {"clock_mhz": 0}}, {"gpu_settings": {"power_w": -1}},
        {"gpu_settings": {"clock": 1}}, {"gpu_settings": {"clock_mhz": 1.5}},
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        JobFile.model_validate({"command": ["x"], **wrong})
