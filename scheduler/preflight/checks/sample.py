"""A small sample of training: two steps on fixed data.

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

from ..check import Check, Compared, Finding, failed, incomplete, passed
from ..context import Context

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
