"""NVIDIA's own diagnostics, where DCGM is installed."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ..check import Check, Finding, Need, failed, incomplete, passed, warned
from ..context import Context


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
                yield _finding(str(test["name"]), result)


def _finding(test: str, result: Mapping[str, object]) -> Finding:
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
