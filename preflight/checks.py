"""The checks of a node: GPUs, clocks, faults, memory, products, reductions, a training sample, and cleaning.

Source: SPEC C6, C2.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..cluster.files.processes import Process, environment, find, kill, living
from .check import WRONG, Check, Compared, Finding, Need, Outcome, Stage, failed, incomplete, passed, skipped, warned
from .context import Context, Group
from .groups import join, patience, wait_for
from .readers import Blame, Gpu, GpuLostError, Holder, Rows, XidLine, read_log, same_gpu, xid_lines, xid_of

if TYPE_CHECKING:
    from torch import Tensor

    from .arithmetic import Maker, Products, Verdict

GONE_S, LOOK_S = 5.0, 0.02
OUT = "keep the node out of service until it is put right"


def put_in_order(context: Context) -> Iterator[Finding]:
    """End what the job left, remove its scratch folder, restore clocks, and tell what did not work."""
    yield _end_leftovers(context.chosen.attempt)
    if context.chosen.scratch:
        yield _clear(Path(context.chosen.scratch))
    reader = context.gpu_reader
    for gpu in context.chosen.gpus if reader is not None else ():
        told = None if reader is None else reader.holders(gpu)
        holders = [it for it in told or () if it.pid != os.getpid()]  # this process may have made products there
        if holders:
            pids = ", ".join(f"process {it.pid} with {it.bytes / 1e9:.2g} GB" for it in holders[:10])
            yield failed(f"gpu {gpu}", pids, "no process holds its memory", OUT)
        yield _restored(f"gpu {gpu}", None if reader is None else reader.reset_clocks(gpu))


def _end_leftovers(attempt: str) -> Finding:
    """Kill the processes of an attempt, and those only."""
    if not attempt:
        return skipped("no attempt is named, so that nothing is known to be left of it", "leftovers")
    until_s, ended = time.monotonic() + GONE_S, set[int]()
    while left := _left_of(attempt):
        if time.monotonic() > until_s:
            pids = ", ".join(str(process.pid) for process in left[:10])
            return failed("leftovers", f"processes {pids} live on", "none, after they were killed", OUT)
        for process in left:
            ended.add(process.pid)
            kill(process)
        time.sleep(LOOK_S)
    return passed("leftovers", got=f"{len(ended)} processes killed")


def _left_of(attempt: str) -> list[Process]:
    told = attempt.encode()
    return [
        process
        for process in living()
        if process.pid != os.getpid() and environment(process, b"LONGSHORE_ATTEMPT").get(b"LONGSHORE_ATTEMPT") == told
    ]


def _clear(folder: Path) -> Finding:
    """Remove a folder; links are removed, and what they point to stays. Nodes of one machine may do so at once."""
    if not folder.is_absolute() or len(folder.parts) < 3:
        return failed("scratch", str(folder), "an absolute path below another folder", "correct the settings")

    def pass_over_what_is_gone(_call: object, _path: str, error: tuple[type, BaseException, object]) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    try:
        if folder.is_symlink() or folder.is_file():
            folder.unlink(missing_ok=True)
        else:
            _open_up(folder)
            shutil.rmtree(folder, onerror=pass_over_what_is_gone)
    except OSError as error:
        return failed("scratch", f"{error.filename or folder}: {error.strerror}", "no such folder", OUT)
    return passed("scratch")


def _open_up(folder: Path) -> None:
    """Let what is in a folder be removed, where a job has taken its own folders the right to be written."""
    with suppress(OSError):
        folder.chmod(0o700)
    for inside, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(inside, name)
            with suppress(OSError):  # it is gone, or another user's, which the removal will tell
                if not path.is_symlink() and path.stat().st_mode & 0o700 != 0o700:
                    path.chmod(0o700)


def _restored(device: str, done: bool | None) -> Finding:  # noqa: FBT001  # a third value says that it is not known
    if done is None:
        return skipped("clocks are left as they are, without the right to set them", device)
    return passed(device) if done else failed(device, "clocks that cannot be reset", "those by default", OUT)


# Scratch folders of a million small files take a minute to remove.
RESET = Check(
    "post.reset", 0, "leftovers ended, scratch cleared, clocks restored", 120.0, put_in_order, (), Stage.AFTER
)


def answer(context: Context) -> Iterator[Finding]:
    """Answer."""
    yield passed(got=f"process of {context.node}")


def count(context: Context) -> Iterator[Finding]:
    """Look whether each chosen GPU is there, of the type that the workload asks for, and the one that is expected."""
    reader = context.gpu_reader
    if reader is None:
        return
    there = {gpu.index: gpu for gpu in reader.gpus()}
    blueprint = context.blueprint()
    expected = {} if blueprint is None else blueprint.gpus_of(context.node)
    for index in context.chosen.gpus:
        yield _gpu_as_chosen(index, there.get(index), context.workload.gpu_type, expected.get(index, ""))


def _gpu_as_chosen(index: int, gpu: Gpu | None, kind: str, uuid: str) -> Finding:
    device = f"gpu {index}"
    if gpu is None:
        return failed(device, "it does not answer", "it answers", "reset it; restart the machine; replace it")
    if kind and kind.casefold().replace(" ", "-") not in gpu.name.casefold().replace(" ", "-"):
        return failed(device, gpu.name, kind, "correct the cluster file, or place the job elsewhere")
    if uuid and gpu.uuid != uuid:
        return failed(device, gpu.uuid, uuid, "was it replaced? learn the wiring again")
    return passed(device, got=f"{gpu.name} {gpu.uuid}")


def versions(context: Context) -> Iterator[Finding]:
    """Tell the versions of driver, library and firmware."""
    if context.gpu_reader is None:
        return
    try:
        driver = context.gpu_reader.driver()
    except GpuLostError as error:
        yield incomplete(str(error), "restart the machine")
        return
    yield passed(text=f"driver {driver.driver}, library {driver.library}, firmware {driver.firmware or 'not told'}")


def equal_on_all(told: Compared) -> Compared:
    """Return who differs from most others; everybody, where no version is that of most."""
    often = Counter(finding.text for finding in told.values()).most_common(2)
    common, times = often[0]
    if times == len(told):
        return {}
    tied = len(often) > 1 and often[1][1] == times
    wanted = "one version on all nodes" if tied else common
    return {
        node: failed("", finding.text, wanted, "reinstall the driver")
        for node, finding in told.items()
        if tied or finding.text != common
    }


RESPONSE = Check("response", 0, "the node's process answers an empty request", 0.5, answer)
COUNT = Check("count.type", 0, "each chosen GPU is there, of the right type", 0.5, count, (Need.GPU,))
VERSIONS = Check(
    "driver.match", 0, "driver, library and firmware are the same on all nodes", 0.5, versions, (Need.GPU,),
    compare=equal_on_all,
)  # fmt: skip


def slowed(context: Context) -> Iterator[Finding]:
    """Look for reasons of the hardware that make a GPU slow, and for a lowered power limit."""
    for gpu in context.chosen.gpus:
        clocks = None if context.gpu_reader is None else context.gpu_reader.clocks(gpu)
        device = f"gpu {gpu}"
        if clocks is None:
            yield skipped("the GPU does not tell", device)
        elif clocks.reasons:
            yield failed(device, ", ".join(clocks.reasons), "no slowdown by hardware", "look at cooling and power")
        elif _is_lowered(clocks.power_limit_w, clocks.default_power_limit_w):
            got = f"a power limit of {clocks.power_limit_w:g} W"
            yield warned(device, got, f"{clocks.default_power_limit_w:g} W", "restore it: nvidia-smi -pl")
        else:
            yield passed(device)


def _is_lowered(limit_w: float | None, default_w: float | None) -> bool:
    return limit_w is not None and default_w is not None and limit_w < 0.99 * default_w


CLOCKS = Check("clocks.thermal", 0, "no GPU is slowed down by its hardware", 0.5, slowed, (Need.GPU,))


def diagnose(level: int, context: Context) -> Iterator[Finding]:
    """Run `dcgmi diag` on the chosen GPUs."""
    chosen = ",".join(str(gpu) for gpu in context.chosen.gpus)
    done = subprocess.run(
        ["dcgmi", "diag", "-r", str(level), "-j", "-i", chosen], capture_output=True, text=True, check=False
    )
    yield from verdicts(done.stdout)


def verdicts(output: str) -> Iterator[Finding]:
    """Return what the JSON of `dcgmi diag -j` says, test by test and GPU by GPU."""
    try:
        told = json.loads(output)
    except ValueError:
        yield incomplete(f"dcgmi printed no JSON: {' '.join(output.split())[:200]}", "is nv-hostengine running?")
        return
    tests = [test for test in _within(told) if isinstance(test.get("results"), list) and "name" in test]
    if not tests:
        yield incomplete("dcgmi tells of no test", "is nv-hostengine running?")
    for test in tests:
        results = test["results"]
        for result in results if isinstance(results, list) else ():
            if isinstance(result, Mapping):
                yield _dcgm_finding(str(test["name"]), result)


def _dcgm_finding(test: str, result: Mapping[str, object]) -> Finding:
    gpu = result.get("gpu_id", result.get("gpu_ids", ""))
    device = f"gpu {gpu} {test}" if str(gpu) else test
    status = str(result.get("status", "")).casefold()
    words = json.dumps(result.get("warnings") or result.get("info") or status)[:500]
    if status in ("pass", "skip"):
        return passed(device)
    if status == "warn":
        return warned(device, words, "pass", "as the diagnostic says")
    if status == "fail":
        return failed(device, words, "pass", "as the diagnostic says")
    return incomplete(f"the diagnostic says {status or 'nothing'!r}", "look at its log", device)


def _within(told: object) -> Iterator[Mapping[str, object]]:
    """Yield all objects of some JSON."""
    if isinstance(told, Mapping):
        yield told
        for value in told.values():
            yield from _within(value)
    elif isinstance(told, list):
        for value in told:
            yield from _within(value)


def _check(diagnostics: int, level: int, limit_s: float) -> Check:
    run: Callable[[Context], Iterator[Finding]] = partial(diagnose, diagnostics)
    about = f"NVIDIA's diagnostics, level {diagnostics}"
    return Check(f"dcgm.{diagnostics}", level, about, limit_s, run, (Need.DCGM,))


# Their level 1 takes seconds, longer than all else before a job, so it waits for our level 2.
FIRST, SECOND, THIRD = _check(1, 2, 10.0), _check(2, 2, 300.0), _check(3, 3, 1800.0)


NOT_TOLD = "the GPU does not tell"


def memory_errors(context: Context) -> Iterator[Finding]:
    """Look for uncorrected memory errors since the driver was loaded."""
    for gpu in context.chosen.gpus if context.gpu_reader is not None else ():
        errors = context.gpu_reader.uncorrected_errors(gpu) if context.gpu_reader is not None else None
        device = f"gpu {gpu}"
        if errors is None:
            yield skipped(NOT_TOLD, device)
        elif errors:
            yield failed(device, f"{errors} uncorrected errors", "none", "reset the GPU; replace it if they return")
        else:
            yield passed(device)


def replaced_rows(context: Context) -> Iterator[Finding]:
    """Look for rows of memory that wait to be replaced, or could not be."""
    reader = context.gpu_reader
    for gpu in context.chosen.gpus if reader is not None else ():
        rows = reader.rows(gpu) if reader is not None else None
        yield skipped(NOT_TOLD, f"gpu {gpu}") if rows is None else _judge_rows(f"gpu {gpu}", rows)


def _judge_rows(device: str, rows: Rows) -> Finding:
    if rows.failed:
        return failed(device, "no spare row of memory was left", "none failed", "replace the GPU")
    if rows.pending:
        return failed(device, "a row of memory waits to be replaced", "none pending", "reset the GPU")
    return passed(device, got=f"{rows.corrected + rows.uncorrected} rows replaced")


def recent_xids(context: Context) -> Iterator[Finding]:
    """Look through the kernel's log for faults of GPUs since the node was cleared."""
    lines = xid_lines(read_log(context.place.kernel_log) or [])
    recent = [line for line in lines if line.at_s >= context.chosen.cleared_s]
    known = [] if context.gpu_reader is None else context.gpu_reader.gpus()
    index = {line: next((gpu.index for gpu in known if same_gpu(gpu.pci, line)), None) for line in recent}
    for line in recent:
        yield from _judge_xid(line, index[line], context.chosen.gpus)


def _judge_xid(line: XidLine, gpu: int | None, chosen: tuple[int, ...]) -> Iterator[Finding]:
    xid = xid_of(line.number)
    device = f"gpu {gpu}" if gpu is not None else f"pci {line.pci}"
    got, wanted = f"Xid {line.number}, {xid.about}: {line.line}", "no such fault since the node was cleared"
    if xid.blame in (Blame.NOTHING, Blame.JOB):
        return
    matters = gpu is None or gpu in chosen or xid.blame is Blame.NODE
    if xid.blame is Blame.WARN or not matters:
        yield warned(device, got, wanted, xid.action)
    else:
        yield failed(device, got, wanted, xid.action)


ECC = Check("ecc.volatile", 0, "no uncorrected memory errors", 0.5, memory_errors, (Need.GPU,))
ROWS = Check("rows.remap", 0, "no row of memory waits to be replaced, or could not be", 0.5, replaced_rows, (Need.GPU,))
XID = Check("xid.recent", 0, "no fault of a GPU in the kernel's log", 0.5, recent_xids, (Need.LOG,))


PROBE_BYTES = 256 << 10


def room(context: Context) -> Iterator[Finding]:
    """Look for free memory, strangers on the GPUs, and try the disk."""
    reader = context.gpu_reader
    free = {} if reader is None else {gpu.index: gpu.free_bytes for gpu in reader.gpus()}
    for gpu in context.chosen.gpus if reader is not None else ():
        holders = (reader.holders(gpu) if reader is not None else None) or ()
        strangers = [it for it in holders if not _is_ours(it, context)]
        own_bytes = sum(it.bytes for it in holders if it.pid == os.getpid())  # this ends before the job
        free_bytes = free.get(gpu, 0) + own_bytes
        yield _judge_memory(f"gpu {gpu}", free_bytes, context.workload.gpu_memory_bytes, strangers)
    yield _try_disk(context)


def _judge_memory(device: str, free_bytes: int, need_bytes: float, strangers: list[Holder]) -> Finding:
    if strangers:
        pids = ", ".join(f"process {it.pid} with {it.bytes / 1e9:.2g} GB" for it in strangers[:10])
        return failed(device, pids, "nobody else on it", "end what was left there; see who runs it")
    if free_bytes < need_bytes:
        return failed(
            device, f"{free_bytes / 1e9:.3g} GB free", f"{need_bytes / 1e9:.3g} GB", "end what was left there"
        )
    return passed(device, got=f"{free_bytes / 1e9:.3g} GB free")


def _is_ours(holder: Holder, context: Context) -> bool:
    """Say whether a process is this one, which looks at the GPU itself, or belongs to the job."""
    if holder.pid == os.getpid():
        return True
    process = find(holder.pid)
    told = {} if process is None else environment(process, b"LONGSHORE_JOB")
    return bool(context.workload.job) and told.get(b"LONGSHORE_JOB") == context.workload.job.encode()


def _try_disk(context: Context) -> Finding:
    """Write bytes that no disk can guess, and read them again."""
    sent = os.urandom(PROBE_BYTES)
    try:
        with tempfile.TemporaryFile(dir=context.place.folder) as file:
            file.write(sent)
            file.flush()
            os.fdatasync(file.fileno())
            file.seek(0)
            came = file.read()
    except OSError as error:
        return failed(
            "scratch", f"{context.place.folder}: {error.strerror}", "bytes are kept", "clean or replace the disk"
        )
    if came != sent:
        return failed("scratch", "other bytes than were written", "the same bytes", "replace the disk")
    return passed("scratch")


ROOM = Check("mem.disk", 0, "free memory, no strangers on the GPUs, and a disk that works", 1.0, room)


SET = "ask the administrator of the node: setting clocks and power limits takes root"


def set_gpus(context: Context) -> Iterator[Finding]:
    """Give each chosen GPU the clock and the limit of power that the job asks for; `post.reset` takes them back."""
    workload, reader = context.workload, context.gpu_reader
    if not workload.clock_mhz and not workload.power_w:
        yield skipped("the job asks for no settings")
        return
    for gpu in context.chosen.gpus if reader is not None else ():
        assert reader is not None
        if workload.clock_mhz:
            done = reader.lock_clock(gpu, workload.clock_mhz)
            yield _settings_finding(f"gpu {gpu}", f"a clock of {workload.clock_mhz} MHz", done)
        if workload.power_w:
            done = reader.limit_power(gpu, workload.power_w)
            yield _settings_finding(f"gpu {gpu}", f"a limit of {workload.power_w:g} W", done)


def _settings_finding(device: str, what: str, done: bool | None) -> Finding:  # noqa: FBT001  # None says that it may not be set
    if done is None:
        return warned(device, f"no right to set {what}, or no way", what, SET)
    # A GPU that does not take what a job asks for is fit all the same.
    return passed(device, got=what) if done else warned(device, f"{what} was refused", what, "correct the job file")


SETTINGS = Check("gpu.settings", 0, "GPUs have the clock and the limit of power that the job asks for", 2.0, set_gpus,
                 (Need.GPU,), Stage.READY)  # fmt: skip


LEAST_SPEED = 0.9  # of the median
SHARE = 0.5  # of the limit, for all GPUs together: what a long run takes, and a short one at most
SPEED_S, SPEED_SIZE = 0.1, 4096


def right(context: Context) -> Iterator[Finding]:
    """Multiply, and hold the product against the stored reference; on long runs again and again."""
    products = products_of(context)
    for gpu in context.accelerators:
        yield _multiplied(context, products, gpu)


def _multiplied(context: Context, products: "Products", gpu: int) -> Finding:
    where, maker = context.where(gpu), maker_of(context, gpu)
    device = "processor" if where == "cpu" else f"gpu {gpu}"
    until_s = time.perf_counter() + SHARE * context.chosen.limit_s / len(context.chosen.gpus)
    times = 0
    while True:
        verdict = products.judge(products.multiply(where), maker)
        times += 1
        if not verdict.is_clean:
            return _wrong(device, verdict)
        if not context.is_long or time.perf_counter() >= until_s:
            how = "bit by bit" if verdict.is_golden else "within the tolerance"
            return passed(device, got=f"{times} products right {how}")


def _wrong(device: str, verdict: "Verdict") -> Finding:
    action = "run level 2; replace the GPU if it returns"
    if verdict.wrong is not None:
        it = verdict.wrong
        got = f"{it.got!r} at [{it.row}, {it.column}], {it.elements} wrong in all"
        return failed(device, got, f"{it.wanted!r}, at most {it.limit:.3g} off", action)
    row, column, count = verdict.bit or (0, 0, 0)
    got = f"other bits at [{row}, {column}], {count} such elements in all, within the tolerance"
    return failed(device, got, "the bits that this type of GPU, driver and library gave before", action)


def products_of(context: Context) -> "Products":
    """Return the product that is asked for, with its references; made once in the life of a process."""
    from .arithmetic import opened

    dtype = context.workload.dtype
    if dtype not in context.products:
        context.products[dtype] = opened(context.place.folder / "references", dtype, context.node)
    return context.products[dtype]


def maker_of(context: Context, gpu: int) -> "Maker":
    """Return what has to be the same for two outputs to be the same bit by bit."""
    import torch

    from .arithmetic import Maker

    reader = context.gpu_reader
    if reader is None or context.where(gpu) == "cpu":
        return Maker(f"{_processor()} {torch.backends.cpu.get_cpu_capability()}", "", f"torch {torch.__version__}")
    name = next((it.name for it in reader.gpus() if it.index == gpu), "not told")
    return Maker(name, reader.driver().driver, f"torch {torch.__version__} cuda {torch.version.cuda}")


def _processor() -> str:
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        return next((it.partition(":")[2].strip() for it in lines if it.startswith("model name")), "processor")


def fast(context: Context) -> Iterator[Finding]:
    """Tell how many operations a second large products come to."""
    import torch

    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    share_s = SHARE * context.chosen.limit_s / max(1, len(context.chosen.gpus))
    budget_s = share_s if context.is_long else min(SPEED_S, share_s)
    for gpu in context.chosen.gpus:
        where = context.where(gpu)
        factor = torch.ones((SPEED_SIZE, SPEED_SIZE), dtype=kinds[context.workload.dtype], device=where)
        _ = factor @ factor
        torch.cuda.synchronize(where)
        times, begin_s = 0, time.perf_counter()
        while time.perf_counter() - begin_s < budget_s:
            _ = factor @ factor
            torch.cuda.synchronize(where)
            times += 1
        rate = times * 2 * SPEED_SIZE**3 / (time.perf_counter() - begin_s)
        yield passed(f"gpu {gpu}", figure=rate, got=f"{rate / 1e12:.4g} TFLOP/s")


def near_median(told: Compared) -> Compared:
    """Return who computes at less than nine tenths of the median speed; all are of one type in a ring."""
    rates = sorted(finding.figure for finding in told.values() if finding.figure is not None)
    median = rates[len(rates) // 2]
    wanted = f"{LEAST_SPEED:.0%} of {median / 1e12:.4g} TFLOP/s, the median"
    return {
        node: failed(finding.device, finding.got, wanted, "clocks.thermal; run level 2")
        for node, finding in told.items()
        if finding.figure is not None and finding.figure < LEAST_SPEED * median
    }


RIGHT = Check("gemm.ref", 1, "products of matrices equal the stored references", 1.0, right, goes_on=True)
FAST = Check(
    "gemm.speed", 1, "products come as fast as on the other nodes", 1.0, fast, (Need.GPU,), compare=near_median,
    goes_on=True,
)  # fmt: skip


ELEMENTS = 1 << 16
PERIOD = 7  # of the pattern 1, 2, ... 7, 1, 2, ...


def reduce(context: Context) -> Iterator[Finding]:
    """Sum up what each accelerator sends; the r-th sends r times the pattern."""
    group = context.group
    if group is None:
        return
    try:
        members = join(context)
        total = _own_sum(context, group)
        wait_for(members.allreduce([total]), patience(context))
    except RuntimeError as error:
        told = " ".join(str(error).split())[:200]
        yield incomplete(
            f"the others did not answer: {told}", "look at the node that is killed or dead, and at the links"
        )
        return
    yield _judge(total.cpu(), sum(group.shares))


def _own_sum(context: Context, group: Group) -> "Tensor":
    """Return the sum of what this node's accelerators send, made on the first of them."""
    rank = group.members.index(context.node)
    first = 1 + sum(group.shares[:rank])
    home = context.where(context.chosen.gpus[0])
    total = first * _pattern(home)
    for at, gpu in enumerate(context.chosen.gpus[1:], start=1):
        total += ((first + at) * _pattern(context.where(gpu))).to(home)
    return total if context.workload.backend == "nccl" and home != "cpu" else total.cpu()


def _pattern(where: str) -> "Tensor":
    import torch

    return (torch.arange(ELEMENTS, dtype=torch.int64, device=where) % PERIOD) + 1


def _judge(total: "Tensor", accelerators: int) -> Finding:
    wanted = accelerators * (accelerators + 1) // 2 * _pattern("cpu")
    wrong = (total != wanted).nonzero()
    if not len(wrong):
        return passed(got=f"{accelerators} accelerators, {ELEMENTS} elements right")
    first = int(wrong[0])
    got = f"{int(total[first])} at [{first}], {len(wrong)} of {ELEMENTS} elements wrong"
    return Finding(Outcome.FAIL, "all-reduce", got, str(int(wanted[first])), "pair.isolate names the node", text=WRONG)


REDUCE = Check(
    "reduce.answer", 1, "a reduction over all chosen accelerators is exact", 2.0, reduce, (Need.SEVERAL,), Stage.GROUP
)
ISOLATE = Check(
    "pair.isolate", 1, "the same in pairs, then suspects with good ones: names who makes it wrong", 2.0, reduce, (),
    Stage.ASKED,
)  # fmt: skip


STEPS, WIDTH, BATCH, RATE = 2, 128, 32, 0.1
MOST_TIMES, LEAST_OVER_S = 2.0, 0.25  # slower than the median by both is slow: short samples vary with the load
MARGIN_S = 0.5
AGREE = 1e-3  # relative difference of losses, on GPUs of several types
LEVEL_2 = "run level 2 on the node"


def sample(context: Context) -> Iterator[Finding]:
    """Take two steps, of the job itself if it says how, and tell the last loss and the time."""
    begin_s = time.perf_counter()
    losses = _own_losses(context) if not context.workload.sample else _losses_of(context)
    took_s = time.perf_counter() - begin_s
    if not losses:
        yield incomplete("the job's sample printed no losses", 'let it print {"losses": [...]} in its last line')
    elif not all(math.isfinite(loss) for loss in losses):
        yield failed("", f"losses {losses}", "finite losses", LEVEL_2)
    else:
        yield passed(figure=took_s, text=repr(losses[-1]), got=f"loss {losses[-1]:.6g} after {took_s:.3g} s")


def _own_losses(context: Context) -> list[float]:
    """Return the losses of a small network on fixed data, on each GPU in turn."""
    return [_trained(context.where(gpu), context.workload.dtype) for gpu in context.accelerators]


def _trained(where: str, dtype: str) -> float:
    """Return the loss in the last of the steps. PyTorch's optimizers would take seconds to be imported."""
    import torch

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype)
    draws = torch.Generator().manual_seed(1)
    shapes = ((WIDTH, WIDTH), (WIDTH, 1), (BATCH, WIDTH), (BATCH, 1))
    first, second, data, labels = (torch.randn(shape, generator=draws).to(where) for shape in shapes)
    weights, loss = [(it / WIDTH**0.5).requires_grad_() for it in (first, second)], torch.zeros(())
    for _ in range(STEPS):
        with torch.autocast(where.partition(":")[0], dtype=half, enabled=half is not None):
            out = torch.relu(data @ weights[0]) @ weights[1]
        loss = (out.float() - labels).square().mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(RATE * gradient)
    return float(loss.detach())


def _losses_of(context: Context) -> list[float]:
    """Return the losses that a job's own sample prints in its last line; none if there are none.

    Raises:
        RuntimeError: If it fails, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-sample-") as own:
        status, output, errors = _run(context, context.workload.sample_folder or own)
    if status != 0:
        last = (errors.strip().splitlines() or ["nothing on standard error"])[-1]
        raise RuntimeError(f"the job's sample ended with {status}: {last[:300]}")
    try:
        told = json.loads((output.strip().splitlines() or [""])[-1])
        return [float(loss) for loss in told["losses"]]
    except (ValueError, TypeError, KeyError):
        return []


def _run(context: Context, folder: str) -> tuple[int, str, str]:
    """Run a job's own sample, and return its status and what it wrote; nothing of it lives on.

    Raises:
        RuntimeError: If it cannot be run, or takes too long.
    """
    most_s = context.chosen.limit_s - MARGIN_S  # by which it has ended before this process is ended for it
    try:
        process = subprocess.Popen(
            context.workload.sample, cwd=folder, env=_environment(context), stdin=subprocess.DEVNULL, text=True,
            errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise RuntimeError(f"the job's sample cannot be run: {error.strerror}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=most_s)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the job's sample took longer than {most_s:.3g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, errors


def _environment(context: Context) -> dict[str, str]:
    """Return what a job's own sample has as its environment: a rank's, as far as it goes by itself."""
    gpus, given = ",".join(map(str, context.chosen.gpus)), dict(context.workload.environment)
    shown = "" if context.place.slots else gpus
    if context.place.warmed is not None:  # a rank, which may know its GPUs by other numbers
        shown = _own_of(given.get("CUDA_VISIBLE_DEVICES", shown), given.get("LOCAL_RANK", "0"))
    return {
        "HOME": os.environ.get("HOME", "/"), "PATH": os.defpath, "PYTHONUNBUFFERED": "1",
        **given, "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": shown, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1", "LONGSHORE_NODE": context.node, "LONGSHORE_GPUS": gpus, "LONGSHORE_SAMPLE": "1",
    }  # fmt: skip


def _own_of(shown: str, local_rank: str) -> str:
    """Return which of the GPUs that a rank sees is its own."""
    gpus = shown.split(",")
    return gpus[int(local_rank)] if local_rank.isdecimal() and int(local_rank) < len(gpus) else shown


def alike(told: Compared) -> Compared:
    """Return whose loss differs from the median's, and who is much slower than most."""
    losses = sorted(float(finding.text) for finding in told.values())
    times = sorted(finding.figure or 0.0 for finding in told.values())
    loss, took_s = losses[(len(losses) - 1) // 2], times[(len(times) - 1) // 2]
    most_s = max(MOST_TIMES * took_s, took_s + LEAST_OVER_S)
    found: dict[str, Finding] = {}
    for node, finding in told.items():
        if abs(float(finding.text) - loss) > AGREE * abs(loss):
            found[node] = failed("", f"loss {finding.text}", f"{loss!r}, as on most nodes", LEVEL_2)
        elif (finding.figure or 0.0) > most_s:
            got = f"{finding.figure:.3g} s for {STEPS} steps"
            found[node] = failed("", got, f"at most {most_s:.3g} s, as the median is {took_s:.3g} s", LEVEL_2)
    return found


SAMPLE = Check("job.sample", 1, "two steps on fixed data: finite, alike on all nodes, no node slow", 2.0, sample,
               compare=alike)  # fmt: skip
