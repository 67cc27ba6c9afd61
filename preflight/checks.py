"""The checks of the state of a node: GPUs, clocks, faults and memory; and its clean-up.

Source: SPEC C6, C2.
"""

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ..cluster.files.processes import Process, environment, find, kill, living
from .check import (
    Check,
    CheckedJob,
    CheckFinding,
    CheckStage,
    Compared,
    Need,
    failed,
    incomplete,
    passed,
    skipped,
    warned,
)
from .context import WHOLE_NODE, Context
from .readers import (
    FaultSource,
    GpuInfo,
    GpuLostError,
    GpuProcess,
    GpuReader,
    RemappedRows,
    XidLine,
    is_line_of_gpu,
    read_kernel_log,
    xid_lines,
    xid_of,
)
from .removal import remove_tree

NOT_REPORTED = "the GPU does not report it"
KILL_WAIT_S, KILL_POLL_S = 5.0, 0.02
KEEP_OUT = "keep the node out of service until it is repaired"


def reset_node(context: Context) -> Iterator[CheckFinding]:
    """End what the job left, remove its scratch folder, restore clocks, and report what did not work."""
    yield _end_leftovers(context.chosen.attempt)
    if context.chosen.scratch:
        yield _remove_folder(Path(context.chosen.scratch))
    for gpu, reader in context.gpus_with_reader():
        holders = [
            holder for holder in reader.memory_holders(gpu) or () if holder.pid != os.getpid()
        ]  # it ran checks there
        if holders:
            yield failed(f"gpu {gpu}", _processes_text(holders), "no process holds its memory", KEEP_OUT)
        restored = list(restore_gpu(reader, gpu, context.workload, context.power_limits_w.get(gpu)))
        if context.workload.power_w and False not in restored:
            context.power_limits_w.pop(gpu, None)
        yield from (_clocks_finding(f"gpu {gpu}", done) for done in restored)


def restore_gpu(
    reader: GpuReader, gpu: int, workload: CheckedJob, power_limit_w: float | None
) -> Iterator[bool | None]:
    """Take back what a job has set of a GPU, and only that: the rest may be an administrator's.

    Args:
        reader: Of the GPU.
        gpu: Its index.
        workload: Of the job.
        power_limit_w: The limit before the job; the factory's default if it is unknown.

    Yields:
        For each setting whether it was restored, None without the right to do so.
    """
    if workload.clock_mhz:
        yield reader.reset_clock(gpu)
    if workload.power_w:
        limits = reader.clock_limits(gpu)
        before_w = power_limit_w or (None if limits is None else limits.default_power_limit_w)
        yield None if before_w is None else reader.limit_power(gpu, before_w)


def power_limit_of(reader: GpuReader, gpu: int) -> float | None:
    """Return the power limit of a GPU in W, None if it does not report it."""
    limits = reader.clock_limits(gpu)
    return None if limits is None else limits.power_limit_w


def _processes_text(holders: list[GpuProcess]) -> str:
    return ", ".join(f"process {holder.pid} with {holder.bytes / 1e9:.2g} GB" for holder in holders[:10])


def _end_leftovers(attempt: str) -> CheckFinding:
    """Kill the processes of an attempt, and those only."""
    if not attempt:
        return skipped("no attempt is named, so its leftovers are unknown", "leftovers")
    until_s, ended = time.monotonic() + KILL_WAIT_S, set[int]()
    while left := _processes_of_attempt(attempt):
        if time.monotonic() > until_s:
            pids = ", ".join(str(process.pid) for process in left[:10])
            return failed("leftovers", f"processes {pids} still run", "none, after they were killed", KEEP_OUT)
        for process in left:
            ended.add(process.pid)
            kill(process)
        time.sleep(KILL_POLL_S)
    return passed("leftovers", got=f"{len(ended)} processes killed")


def _processes_of_attempt(attempt: str) -> list[Process]:
    name = attempt.encode()
    return [
        process
        for process in living()
        if process.pid != os.getpid() and environment(process, b"LONGSHORE_ATTEMPT").get(b"LONGSHORE_ATTEMPT") == name
    ]


def _remove_folder(folder: Path) -> CheckFinding:
    """Remove a folder; of a link, the target stays. Several nodes of one machine may do so at once."""
    if not folder.is_absolute() or len(folder.parts) < 3:
        return failed("scratch", str(folder), "an absolute path below another folder", "correct the settings")
    try:
        remove_tree(folder)
    except OSError as error:
        return failed("scratch", f"{folder}: {error}", "no such folder", KEEP_OUT)
    return passed("scratch")


def _clocks_finding(device: str, done: bool | None) -> CheckFinding:  # noqa: FBT001  # None is unknown
    if done is None:
        return skipped("clocks stay, without the right to set them", device)
    return passed(device) if done else failed(device, "clocks that cannot be reset", "those by default", KEEP_OUT)


# Scratch folders of a million small files take a minute to remove.
RESET_CHECK = Check(
    "post.reset", 0, "leftovers ended, scratch cleared, the job's clocks reset", 120.0, reset_node, (), CheckStage.AFTER
)


def reply_at_once(context: Context) -> Iterator[CheckFinding]:
    """Reply."""
    yield passed(got=f"process of {context.node}")


def check_chosen_gpus(context: Context) -> Iterator[CheckFinding]:
    """Check that each chosen GPU is there, of the type that the workload needs, and the one in the wiring file."""
    reader = context.gpu_reader
    if reader is None:
        return
    there = {gpu.index: gpu for gpu in reader.gpus()}
    blueprint = context.blueprint()
    expected = {} if blueprint is None else blueprint.gpus_of(context.node)
    for index in context.chosen.gpus:
        yield _judge_gpu(index, there.get(index), context.workload.gpu_type, expected.get(index, ""))


def _judge_gpu(index: int, gpu: GpuInfo | None, wanted_type: str, wanted_uuid: str) -> CheckFinding:
    device = f"gpu {index}"
    if gpu is None:
        return failed(device, "it does not answer", "it answers", "reset it; restart the machine; replace it")
    if wanted_type and wanted_type.casefold().replace(" ", "-") not in gpu.name.casefold().replace(" ", "-"):
        return failed(device, gpu.name, wanted_type, "correct the cluster file, or place the job elsewhere")
    if wanted_uuid and gpu.uuid != wanted_uuid:
        return failed(device, gpu.uuid, wanted_uuid, "was it replaced? learn the wiring again")
    return passed(device, got=f"{gpu.name} {gpu.uuid}")


def report_versions(context: Context) -> Iterator[CheckFinding]:
    """Report the versions of driver, library and firmware."""
    if context.gpu_reader is None:
        return
    try:
        driver = context.gpu_reader.driver_versions()
    except GpuLostError as error:
        yield incomplete(str(error), "restart the machine")
        return
    yield passed(text=f"driver {driver.driver}, library {driver.library}, firmware {driver.firmware or 'unknown'}")


def fail_differing_versions(findings: Compared) -> Compared:
    """Return failures of the nodes whose version is not the most common; of all nodes, if two are as common."""
    often = Counter(finding.text for finding in findings.values()).most_common(2)
    common, times = often[0]
    if times == len(findings):
        return {}
    tied = len(often) > 1 and often[1][1] == times
    wanted = "one version on all nodes" if tied else common
    return {
        node: failed("", finding.text, wanted, "reinstall the driver")
        for node, finding in findings.items()
        if tied or finding.text != common
    }


RESPONSE_CHECK = Check("response", 0, "the node's process replies to an empty request", 0.5, reply_at_once)
COUNT_CHECK = Check("count.type", 0, "each chosen GPU is there, of the right type", 0.5, check_chosen_gpus, (Need.GPU,))
VERSIONS_CHECK = Check(
    "driver.match", 0, "driver, library and firmware are the same on all nodes", 0.5, report_versions, (Need.GPU,),
    compare=fail_differing_versions,
)  # fmt: skip


def check_slowdown(context: Context) -> Iterator[CheckFinding]:
    """Check for hardware reasons that slow a GPU down, and for a lowered power limit."""
    for gpu, reader in context.gpus_with_reader():
        clocks = reader.clock_limits(gpu)
        device = f"gpu {gpu}"
        if clocks is None or clocks.reasons is None:
            yield skipped(NOT_REPORTED, device)
        elif clocks.reasons:
            yield failed(device, ", ".join(clocks.reasons), "no slowdown by hardware", "check cooling and power")
        else:
            yield _judge_power(device, clocks.power_limit_w, clocks.default_power_limit_w)


def _judge_power(device: str, limit_w: float | None, default_w: float | None) -> CheckFinding:
    if limit_w is None or default_w is None or limit_w >= 0.99 * default_w:
        return passed(device)
    return warned(device, f"a power limit of {limit_w:g} W", f"{default_w:g} W", "restore it: nvidia-smi -pl")


CLOCKS_CHECK = Check("clocks.thermal", 0, "no GPU is slowed down by its hardware", 0.5, check_slowdown, (Need.GPU,))


def run_dcgm(level: int, context: Context) -> Iterator[CheckFinding]:
    """Run `dcgmi diag` on the chosen GPUs."""
    chosen = ",".join(str(gpu) for gpu in context.chosen.gpus)
    done = subprocess.run(
        ["dcgmi", "diag", "-r", str(level), "-j", "-i", chosen], capture_output=True, text=True, check=False
    )
    yield from dcgm_findings(done.stdout)


def dcgm_findings(output: str) -> Iterator[CheckFinding]:
    """Return the findings in the JSON of `dcgmi diag -j`, test by test and GPU by GPU."""
    try:
        answer = json.loads(output)
    except ValueError:
        yield incomplete(f"dcgmi printed no JSON: {' '.join(output.split())[:200]}", "is nv-hostengine running?")
        return
    tests = [test for test in _json_objects(answer) if isinstance(test.get("results"), list) and "name" in test]
    if not tests:
        yield incomplete("dcgmi reports no test", "is nv-hostengine running?")
    for test in tests:
        results = test["results"]
        for result in results if isinstance(results, list) else ():
            if isinstance(result, Mapping):
                yield _dcgm_finding(str(test["name"]), result)


def _dcgm_finding(test: str, result: Mapping[str, object]) -> CheckFinding:
    gpu = result.get("gpu_id", result.get("gpu_ids", ""))
    device = f"gpu {gpu} {test}" if str(gpu) else test
    status = str(result.get("status", "")).casefold()
    words = json.dumps(result.get("warnings") or result.get("info") or status)[:500]
    if status in ("pass", "skip"):
        return passed(device)
    if status == "warn":
        return warned(device, words, "pass", "as the diagnostic recommends")
    if status == "fail":
        return failed(device, words, "pass", "as the diagnostic recommends")
    return incomplete(f"the diagnostic reports {status or 'nothing'!r}", "read its log", device)


def _json_objects(value: object) -> Iterator[Mapping[str, object]]:
    """Yield all objects of some JSON."""
    if isinstance(value, Mapping):
        yield value
        for inner in value.values():
            yield from _json_objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _json_objects(inner)


def _dcgm_check(diagnostics: int, level: int, limit_s: float) -> Check:
    run: Callable[[Context], Iterator[CheckFinding]] = partial(run_dcgm, diagnostics)
    about = f"NVIDIA's diagnostics, level {diagnostics}"
    return Check(f"dcgm.{diagnostics}", level, about, limit_s, run, (Need.DCGM,))


# DCGM's level 1 takes seconds, longer than all other checks before a job, so it runs at our level 2.
FIRST_CHECK, SECOND_CHECK, THIRD_CHECK = (
    _dcgm_check(1, 2, 10.0), _dcgm_check(2, 2, 300.0), _dcgm_check(3, 3, 1800.0),
)  # fmt: skip


def check_memory_errors(context: Context) -> Iterator[CheckFinding]:
    """Check for uncorrected memory errors since the driver was loaded."""
    for gpu, reader in context.gpus_with_reader():
        errors = reader.uncorrected_errors(gpu)
        device = f"gpu {gpu}"
        if errors is None:
            yield skipped(NOT_REPORTED, device)
        elif errors:
            yield failed(device, f"{errors} uncorrected errors", "none", "reset the GPU; replace it if they return")
        else:
            yield passed(device)


def check_remapped_rows(context: Context) -> Iterator[CheckFinding]:
    """Check for memory rows that wait to be remapped, or could not be."""
    for gpu, reader in context.gpus_with_reader():
        rows = reader.remapped_rows(gpu)
        yield skipped(NOT_REPORTED, f"gpu {gpu}") if rows is None else _judge_rows(f"gpu {gpu}", rows)


def _judge_rows(device: str, rows: RemappedRows) -> CheckFinding:
    if rows.failed:
        return failed(device, "no spare memory row was left", "none failed", "replace the GPU")
    if rows.pending:
        return failed(device, "a memory row waits to be remapped", "none pending", "reset the GPU")
    return passed(device, got=f"{rows.corrected + rows.uncorrected} rows remapped")


def check_recent_xids(context: Context) -> Iterator[CheckFinding]:
    """Check the kernel's log for GPU faults since the GPU, or the node, was cleared."""
    known = [] if context.gpu_reader is None else context.gpu_reader.gpus()
    booted_s = time.time() - time.monotonic()  # the log counts from there on
    for line in xid_lines(read_kernel_log(context.setup.kernel_log) or []):
        gpu = next((gpu.index for gpu in known if is_line_of_gpu(gpu.pci, line)), None)
        cleared_s = (context.chosen.cleared_s.get(place, 0.0) for place in (gpu, WHOLE_NODE) if place is not None)
        if booted_s + line.at_s > max(cleared_s):
            yield from _judge_xid(line, gpu, context.chosen.gpus)


def _judge_xid(line: XidLine, gpu: int | None, chosen: tuple[int, ...]) -> Iterator[CheckFinding]:
    xid = xid_of(line.number)
    device = f"gpu {gpu}" if gpu is not None else f"pci {line.pci}"
    got, wanted = f"Xid {line.number}, {xid.about}: {line.line}", "no such fault since the node was cleared"
    if xid.source in (FaultSource.NOTHING, FaultSource.JOB):
        return
    matters = gpu is None or gpu in chosen or xid.source is FaultSource.NODE
    if xid.source is FaultSource.WARN or not matters:
        yield warned(device, got, wanted, xid.action)
    else:
        yield failed(device, got, wanted, xid.action)


ECC_CHECK = Check("ecc.volatile", 0, "no uncorrected memory errors", 0.5, check_memory_errors, (Need.GPU,))
ROWS_CHECK = Check(
    "rows.remap", 0, "no memory row waits to be remapped, or could not be", 0.5, check_remapped_rows, (Need.GPU,)
)
XID_CHECK = Check("xid.recent", 0, "no GPU fault in the kernel's log", 0.5, check_recent_xids, (Need.LOG,))


PROBE_BYTES = 256 << 10


def check_memory_and_disk(context: Context) -> Iterator[CheckFinding]:
    """Check free memory and other processes on the GPUs, and write to the disk."""
    reader = context.gpu_reader
    free = {} if reader is None else {gpu.index: gpu.free_bytes for gpu in reader.gpus()}
    for gpu, reader in context.gpus_with_reader():
        holders = reader.memory_holders(gpu) or ()
        others = [holder for holder in holders if not _is_own_or_of_job(holder, context)]
        own_bytes = sum(holder.bytes for holder in holders if holder.pid == os.getpid())  # it ends before the job
        free_bytes = free.get(gpu, 0) + own_bytes
        yield _judge_memory(f"gpu {gpu}", free_bytes, context.workload.gpu_memory_bytes, others)
    yield _try_disk(context)


def _judge_memory(device: str, free_bytes: int, need_bytes: float, others: list[GpuProcess]) -> CheckFinding:
    if others:
        return failed(
            device, _processes_text(others), "no other process on it", "end what was left there; find its owner"
        )
    if free_bytes < need_bytes:
        return failed(
            device, f"{free_bytes / 1e9:.3g} GB free", f"{need_bytes / 1e9:.3g} GB", "end what was left there"
        )
    return passed(device, got=f"{free_bytes / 1e9:.3g} GB free")


def _is_own_or_of_job(holder: GpuProcess, context: Context) -> bool:
    """Return whether a process is this one, which checks the GPU itself, or belongs to the job."""
    if holder.pid == os.getpid():
        return True
    process = find(holder.pid)
    found = {} if process is None else environment(process, b"LONGSHORE_JOB")
    return bool(context.workload.job) and found.get(b"LONGSHORE_JOB") == context.workload.job.encode()


def _try_disk(context: Context) -> CheckFinding:
    """Write random bytes to the disk, and read them again."""
    sent = os.urandom(PROBE_BYTES)
    try:
        with tempfile.TemporaryFile(dir=context.setup.folder) as file:
            file.write(sent)
            file.flush()
            os.fdatasync(file.fileno())
            file.seek(0)
            received = file.read()
    except OSError as error:
        return failed(
            "scratch",
            f"{context.setup.folder}: {error.strerror}",
            "a disk that stores bytes",
            "clean or replace the disk",
        )
    if received != sent:
        return failed("scratch", "other bytes than were written", "the same bytes", "replace the disk")
    return passed("scratch")


ROOM_CHECK = Check(
    "mem.disk", 0, "free memory, no other processes on the GPUs, and a disk that works", 1.0, check_memory_and_disk
)


ASK_ADMINISTRATOR = "ask the administrator of the node: setting clocks and power limits takes root"


def apply_gpu_settings(context: Context) -> Iterator[CheckFinding]:
    """Give each chosen GPU the clock and the power limit that the job requests; `post.reset` resets them."""
    workload = context.workload
    if not workload.clock_mhz and not workload.power_w:
        yield skipped("the job requests no settings")
        return
    for gpu, reader in context.gpus_with_reader():
        if workload.clock_mhz:
            done = reader.lock_clock(gpu, workload.clock_mhz)
            yield _settings_finding(f"gpu {gpu}", f"a clock of {workload.clock_mhz} MHz", done)
        if workload.power_w:
            before_w = power_limit_of(reader, gpu)
            if before_w is not None:
                context.power_limits_w.setdefault(gpu, before_w)  # the first one, if the reset of a job has failed
            done = reader.limit_power(gpu, workload.power_w)
            yield _settings_finding(f"gpu {gpu}", f"a power limit of {workload.power_w:g} W", done)


def _settings_finding(device: str, setting: str, done: bool | None) -> CheckFinding:  # noqa: FBT001  # None: no right to
    if done is None:
        return warned(device, f"no right to set {setting}, or no way", setting, ASK_ADMINISTRATOR)
    # A GPU that refuses a setting is fit all the same.
    return (
        passed(device, got=setting)
        if done
        else warned(device, f"{setting} was refused", setting, "correct the job file")
    )


SETTINGS_CHECK = Check("gpu.settings", 0, "GPUs have the clock and power limit of the job", 2.0, apply_gpu_settings,
                 (Need.GPU,), CheckStage.READY)  # fmt: skip
