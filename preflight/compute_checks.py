"""The checks that compute: matrix products, reductions over all accelerators, and a training sample.

Source: SPEC C2.
"""

import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..cluster.files.processes import free_port
from .check import (
    WRONG_ANSWER,
    Check,
    CheckFinding,
    CheckOutcome,
    CheckStage,
    Compared,
    Need,
    fail_below_median,
    failed,
    incomplete,
    passed,
)
from .context import CheckGroup, Context
from .groups import join_check_group, member_timeout, wait_for_work

if TYPE_CHECKING:
    from torch import Tensor

    from .arithmetic import ComputeStack, ProductErrors, ReferencedProduct

MIN_SPEED = 0.9  # of the median
SHARE = 0.5  # of the limit, for all GPUs together: what a long run takes, and the maximum of a short one
SPEED_S, SPEED_SIZE = 0.1, 4096


def check_products(context: Context) -> Iterator[CheckFinding]:
    """Multiply matrices, and compare the product with the stored reference; long runs repeat that."""
    products = referenced_product_of(context)
    for gpu in context.accelerators:
        yield _check_product(context, products, gpu)


def _check_product(context: Context, products: "ReferencedProduct", gpu: int) -> CheckFinding:
    where, stack = context.torch_device(gpu), compute_stack_of(context, gpu)
    device = "processor" if where == "cpu" else f"gpu {gpu}"
    until_s = time.perf_counter() + SHARE * context.chosen.limit_s / len(context.chosen.gpus)
    times = 0
    while True:
        verdict = products.judge(products.multiply(where), stack)
        times += 1
        if not verdict.is_clean:
            return _wrong_product_finding(device, verdict)
        if not context.is_long or time.perf_counter() >= until_s:
            how = "bit by bit" if verdict.is_golden else "within the tolerance"
            return passed(device, got=f"{times} products right {how}")


def _wrong_product_finding(device: str, verdict: "ProductErrors") -> CheckFinding:
    action = "run level 2; replace the GPU if it returns"
    if verdict.wrong is not None:
        wrong = verdict.wrong
        got = f"{wrong.got!r} at [{wrong.row}, {wrong.column}], {wrong.elements} wrong in all"
        return failed(device, got, f"{wrong.wanted!r}, at most {wrong.limit:.3g} off", action)
    row, column, count = verdict.bit or (0, 0, 0)
    got = f"other bits at [{row}, {column}], {count} such elements in all, within the tolerance"
    return failed(device, got, "the bits that this type of GPU, driver and library gave before", action)


def referenced_product_of(context: Context) -> "ReferencedProduct":
    """Return the product for the workload's dtype, with its references; made once in the life of a process."""
    from .arithmetic import open_product

    dtype = context.workload.dtype
    if dtype not in context.products:
        context.products[dtype] = open_product(context.setup.folder / "references", dtype, context.node)
    return context.products[dtype]


def compute_stack_of(context: Context, gpu: int) -> "ComputeStack":
    """Return what has to be equal for two products to be equal bit by bit."""
    import torch

    from .arithmetic import ComputeStack

    reader = context.gpu_reader
    if reader is None or context.torch_device(gpu) == "cpu":
        return ComputeStack(
            f"{_processor_name()} {torch.backends.cpu.get_cpu_capability()}", "", f"torch {torch.__version__}"
        )
    name = next((info.name for info in reader.gpus() if info.index == gpu), "unknown")
    return ComputeStack(name, reader.driver_versions().driver, f"torch {torch.__version__} cuda {torch.version.cuda}")


def _processor_name() -> str:
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor")


def measure_product_speed(context: Context) -> Iterator[CheckFinding]:
    """Measure the FLOP/s of large products."""
    import torch

    from .arithmetic import torch_dtype

    share_s = SHARE * context.chosen.limit_s / max(1, len(context.chosen.gpus))
    budget_s = share_s if context.is_long else min(SPEED_S, share_s)
    for gpu in context.chosen.gpus:
        where = context.torch_device(gpu)
        factor = torch.ones((SPEED_SIZE, SPEED_SIZE), dtype=torch_dtype(context.workload.dtype), device=where)
        _ = factor @ factor
        torch.cuda.synchronize(where)
        times, begin_s = 0, time.perf_counter()
        while time.perf_counter() - begin_s < budget_s:
            _ = factor @ factor
            torch.cuda.synchronize(where)
            times += 1
        rate = times * 2 * SPEED_SIZE**3 / (time.perf_counter() - begin_s)
        yield passed(f"gpu {gpu}", figure=rate, got=f"{rate / 1e12:.4g} TFLOP/s")


def fail_slow_products(findings: Compared) -> Compared:
    """Return failures of nodes below nine tenths of the median speed; all GPUs of a ring are of one type."""
    return fail_below_median(
        findings, MIN_SPEED, lambda median: f"{MIN_SPEED:.0%} of {median / 1e12:.4g} TFLOP/s, the median",
        "clocks.thermal; run level 2",
    )  # fmt: skip


RIGHT_CHECK = Check(
    "gemm.ref", 1, "products of matrices equal the stored references", 1.0, check_products, is_extendable=True
)
FAST_CHECK = Check(
    "gemm.speed", 1, "products are as fast as on the other nodes", 1.0, measure_product_speed, (Need.GPU,),
    compare=fail_slow_products, is_extendable=True,
)  # fmt: skip


ELEMENTS = 1 << 16
PERIOD = 7  # of the pattern 1, 2, ... 7, 1, 2, ...


def check_reduction(context: Context) -> Iterator[CheckFinding]:
    """Sum what each accelerator sends; the r-th sends r times the pattern."""
    group = context.group
    if group is None:
        return
    try:
        members = join_check_group(context)
        total = _own_sum(context, group)
        wait_for_work(members.allreduce([total]), member_timeout(context))
    except RuntimeError as error:
        problem = " ".join(str(error).split())[:200]
        yield incomplete(f"no answer from the others: {problem}", "check the killed or dead node, and the links")
        return
    yield _judge_sum(total.cpu(), sum(group.shares))


def _own_sum(context: Context, group: CheckGroup) -> "Tensor":
    """Return the sum of what this node's accelerators send, made on the first of them."""
    rank = group.members.index(context.node)
    first = 1 + sum(group.shares[:rank])
    home = context.torch_device(context.chosen.gpus[0])
    total = first * _pattern(home)
    for at, gpu in enumerate(context.chosen.gpus[1:], start=1):
        total += ((first + at) * _pattern(context.torch_device(gpu))).to(home)
    return total if context.workload.backend == "nccl" and home != "cpu" else total.cpu()


def _pattern(torch_device: str) -> "Tensor":
    import torch

    return (torch.arange(ELEMENTS, dtype=torch.int64, device=torch_device) % PERIOD) + 1


def _judge_sum(total: "Tensor", accelerators: int) -> CheckFinding:
    wanted = accelerators * (accelerators + 1) // 2 * _pattern("cpu")
    wrong = (total != wanted).nonzero()
    if not len(wrong):
        return passed(got=f"{accelerators} accelerators, {ELEMENTS} elements right")
    first = int(wrong[0])
    got = f"{int(total[first])} at [{first}], {len(wrong)} of {ELEMENTS} elements wrong"
    return CheckFinding(
        CheckOutcome.FAIL, "all-reduce", got, str(int(wanted[first])), "pair.isolate names the node", text=WRONG_ANSWER
    )


REDUCE_CHECK = Check(
    "reduce.answer",
    1,
    "a reduction over all chosen accelerators is exact",
    2.0,
    check_reduction,
    (Need.SEVERAL,),
    CheckStage.GROUP,
)
ISOLATE_CHECK = Check(
    "pair.isolate", 1, "the same in pairs, then suspects with good nodes: isolates bad nodes", 2.0, check_reduction, (),
    CheckStage.ON_REQUEST,
)  # fmt: skip


STEPS, WIDTH, BATCH, RATE = 2, 128, 32, 0.1
SLOW_FACTOR, SLOW_MARGIN_S = 2.0, 0.25  # over the median, the larger of both: short samples vary with the load
SAMPLE_MARGIN_S = 0.5
AGREE = 1e-3  # relative difference of losses, on GPUs of several types
LEVEL_2 = "run level 2 on the node"


def run_training_sample(context: Context) -> Iterator[CheckFinding]:
    """Take two training steps, by the job's own command if it has one; report the last loss and the time."""
    begin_s = time.perf_counter()
    if context.workload.sample:
        losses = _losses_of_job_sample(context)
    else:
        losses = [
            _train_small_network(context.torch_device(gpu), context.workload.dtype) for gpu in context.accelerators
        ]
    took_s = time.perf_counter() - begin_s
    if not losses:
        yield incomplete("the job's sample printed no losses", 'let it print {"losses": [...]} in its last line')
    elif not all(math.isfinite(loss) for loss in losses):
        yield failed("", f"losses {losses}", "finite losses", LEVEL_2)
    else:
        yield passed(figure=took_s, text=repr(losses[-1]), got=f"loss {losses[-1]:.6g} after {took_s:.3g} s")


def _train_small_network(torch_device: str, dtype: str) -> float:
    """Return the loss of a small network on fixed data, in the last of the steps.

    PyTorch's optimizers would take seconds to be imported.
    """
    import torch

    from .arithmetic import torch_dtype

    half = None if dtype == "fp32" else torch_dtype(dtype)
    draws = torch.Generator().manual_seed(1)
    shapes = ((WIDTH, WIDTH), (WIDTH, 1), (BATCH, WIDTH), (BATCH, 1))
    first, second, data, labels = (torch.randn(shape, generator=draws).to(torch_device) for shape in shapes)
    weights, loss = [(drawn / WIDTH**0.5).requires_grad_() for drawn in (first, second)], torch.zeros(())
    for _ in range(STEPS):
        with torch.autocast(torch_device.partition(":")[0], dtype=half, enabled=half is not None):
            out = torch.relu(data @ weights[0]) @ weights[1]
        loss = (out.float() - labels).square().mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(RATE * gradient)
    return float(loss.detach())


def _losses_of_job_sample(context: Context) -> list[float]:
    """Return the losses that a job's own sample prints in its last line; none if there are none.

    Raises:
        RuntimeError: If it fails, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-sample-") as own:
        status, output, errors = _run_job_sample(context, context.workload.sample_folder or own)
    if status != 0:
        last = (errors.strip().splitlines() or ["nothing on standard error"])[-1]
        raise RuntimeError(f"the job's sample ended with {status}: {last[:300]}")
    try:
        answer = json.loads((output.strip().splitlines() or [""])[-1])
        return [float(loss) for loss in answer["losses"]]
    except (ValueError, TypeError, KeyError):
        return []


def _run_job_sample(context: Context, folder: str) -> tuple[int, str, str]:
    """Run a job's own sample, and return its status and what it wrote; no process of it survives.

    Raises:
        RuntimeError: If it cannot be run, or takes too long.
    """
    max_s = context.chosen.limit_s - SAMPLE_MARGIN_S  # it ends before this process is killed
    try:
        process = subprocess.Popen(
            context.workload.sample, cwd=folder, env=_sample_environment(context), stdin=subprocess.DEVNULL, text=True,
            errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise RuntimeError(f"the job's sample cannot be run: {error.strerror}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=max_s)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the job's sample took longer than {max_s:.3g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, errors


OF_WHOLE_JOB = ("LONGSHORE_STEPS", "LONGSHORE_SAVED", "LONGSHORE_PROGRESS")  # variables that name files of its ranks


def _sample_environment(context: Context) -> dict[str, str]:
    """Return the environment of a job's own sample: that of a single rank, which meets no other one.

    It reports nothing to the job's files, and two samples on one machine have ports of their own.
    """
    gpus, given = ",".join(map(str, context.chosen.gpus)), dict(context.workload.environment)
    shown = "" if context.setup.slots else gpus
    if context.setup.warmed is not None:  # a rank: this process inherits its environment, which may have any bytes
        given = dict(os.environ)
        shown = _gpu_of_local_rank(given.get("CUDA_VISIBLE_DEVICES", shown), given.get("LOCAL_RANK", "0"))
    kept = {
        name: value
        for name, value in given.items()
        if name not in OF_WHOLE_JOB and not name.startswith("TORCHELASTIC_")
    }
    return {
        "HOME": os.environ.get("HOME", "/"), "PATH": os.defpath, "PYTHONUNBUFFERED": "1",
        **kept, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": shown, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1", "LONGSHORE_NODE": context.node, "LONGSHORE_GPUS": gpus, "LONGSHORE_SAMPLE": "1",
    }  # fmt: skip


def _gpu_of_local_rank(shown: str, local_rank: str) -> str:
    """Return the GPU of a rank, of those that it sees."""
    gpus = shown.split(",")
    return gpus[int(local_rank)] if local_rank.isdecimal() and int(local_rank) < len(gpus) else shown


def fail_differing_samples(findings: Compared) -> Compared:
    """Return failures of nodes whose loss is not the median, or which are much slower than the median."""
    losses = sorted(float(finding.text) for finding in findings.values())
    times = sorted(finding.figure or 0.0 for finding in findings.values())
    loss, took_s = losses[(len(losses) - 1) // 2], times[(len(times) - 1) // 2]
    max_s = max(SLOW_FACTOR * took_s, took_s + SLOW_MARGIN_S)
    found: dict[str, CheckFinding] = {}
    for node, finding in findings.items():
        if abs(float(finding.text) - loss) > AGREE * abs(loss):
            found[node] = failed("", f"loss {finding.text}", f"{loss!r}, as on most nodes", LEVEL_2)
        elif (finding.figure or 0.0) > max_s:
            got = f"{finding.figure:.3g} s for {STEPS} steps"
            found[node] = failed("", got, f"at most {max_s:.3g} s, as the median is {took_s:.3g} s", LEVEL_2)
    return found


SAMPLE_CHECK = Check(
    "job.sample", 1, "two steps on fixed data: finite, alike on all nodes, no node slow", 2.0, run_training_sample,
    compare=fail_differing_samples,
)  # fmt: skip
