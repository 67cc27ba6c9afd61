"""A mutation sample: how many of the faults seeded into the code the tests find, `make test` and `make test-full`.

Each fault is run against the tests that reach its line, the quickest first, until one fails. A test that fails counts
if it passes without the fault. Tests of a lane that would take longer than a bound are cut there, as `-x` leaves little
behind it for a fault that is found at all. What is done is kept: a run that was stopped goes on.

A fault in a kernel is tried with the kernels as plain Python first, for the quickest tests, and then compiled again,
which takes minutes. Plain Python also raises errors where machine code computes on: a row counts the faults that were
found by it alone. A fault elsewhere leaves the machine code of the kernels as it is.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from . import reach
from .code_faults import Fault, sample
from .harness import ROOT, Row, main, progress

FAULTS = int(os.environ.get("FAULTS", "100"))
SEED = int(os.environ.get("SEED", "1"))
KEPT = Path(os.environ.get("MUTATION", Path(tempfile.gettempdir()) / "longshore-mutation"))
LANES = {"quick": ("-m", "not full"), "full": ("-m", "", "--hypothesis-profile", "full")}
MOST_S = {"quick": 150.0, "full": 300.0}  # of a fault's tests, by their times without it
PLAIN_S, MOST_PLAIN_S = 20.0, 150.0  # of those tried with plain kernels: by their times compiled, and in truth
COMPILE_S = 900.0  # all kernels, beside the tests of another fault
USAGE = 4  # status of pytest where it does not know a test
WRONGLY_FAILED = 5  # tests that fail without the fault, too, after which a fault counts as missed
WHERE_KERNELS = "from longshore.cluster.kernels import kept; print(kept.cache_folder())"


class Verdict(NamedTuple):
    """A lane's verdict on a fault: found, missed, or no test reaches it."""

    word: str
    test: str = ""
    kernels: str = "compiled"  # or plain Python


class Copy:
    """A copy of the checkout in which one fault at a time is seeded, and where its kernels are kept.

    Args:
        root: The checkout.
        place: Of the copy, which is made.
    """

    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.place, self.kernels = root, place / "longshore", place / "kernels"
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True, timeout=60
        )
        for name in names.stdout.split("\0")[:-1]:
            target = self.place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (root / name).exists():
                shutil.copy2(root / name, target, follow_symlinks=False)
        if (root.parent / "shared").exists():  # data that some tests have their cases from
            (place / "shared").symlink_to(root.parent / "shared")

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Let the copy have a fault."""
        path = self.place / fault.path
        text = path.read_text(encoding="utf-8")
        path.write_text(fault.applied(text), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            shutil.rmtree(self.kernels, ignore_errors=True)

    def kernels_folder(self) -> Path:
        """Return where machine code is kept for the sources as they are."""
        *_, last = ["", *self._python("-c", WHERE_KERNELS).splitlines()]  # a warning may stand before it
        return Path(last or self.kernels / "of a module that fails")

    def take_kernels(self, sound: "Copy") -> None:
        """Take the machine code of the sound sources for that of these, where no kernel differs."""
        shutil.copytree(sound.kernels_folder(), self.kernels_folder(), dirs_exist_ok=True)

    def compile(self) -> None:
        """Compile all kernels again; those that cannot be are found by the tests that need them."""
        self._python("-m", "longshore", "compile")

    def _python(self, *arguments: str) -> str:
        """Return what Python writes, nothing if it fails or takes too long: a fault may let it run for ever."""
        status, out = self._run(arguments, plain=False, most_s=COMPILE_S)
        return out if status == 0 else ""

    def _run(self, arguments: Sequence[str], *, plain: bool, most_s: float) -> tuple[int | None, str]:
        """Run Python in the copy; return its status, None if the time was over, and what it wrote."""
        environment = {
            **os.environ, "PYTHONPATH": str(self.place / "src"), "OMP_NUM_THREADS": "1",
            "NUMBA_CACHE_DIR": str(self.kernels), **({"NUMBA_DISABLE_JIT": "1"} if plain else {}),
        }  # fmt: skip
        run = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.place, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = run.communicate(timeout=most_s)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, 9)
            with suppress(subprocess.TimeoutExpired):  # what left the group may hold the pipe
                run.communicate(timeout=60)
            return None, ""
        return run.returncode, out

    def first_failure(self, tests: Sequence[str], lane: str, *, plain: bool, most_s: float) -> str | None:
        """Run tests until one fails, or the time is over; return which one, "" if the run broke off, none if none."""
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "tests"
            listed.write_text("\n".join(tests), encoding="utf-8")
            arguments = [
                "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly",
                *LANES[lane], f"@{listed}",
            ]  # fmt: skip
            status, out = self._run(arguments, plain=plain, most_s=most_s)
        if status is None:
            return None  # a test that hangs would have failed by its own limit
        if status == USAGE and "ERROR collecting" not in out:  # else the fault shows where tests are imported
            raise RuntimeError(f"pytest does not know all of {len(tests)} tests:\n{out[-2000:]}")
        failed = re.search(r"^(?:FAILED|ERROR) (.+)$", out, re.MULTILINE)
        if failed:  # the name of a test may have " - " in it, as the words on its failure may
            return next((it for it in tests if f"{failed[1]} - ".startswith(f"{it} - ")), "")
        return None if status in (0, 5) else ""


class Pair(NamedTuple):
    """A copy with the fault and one without any."""

    faulty: Copy
    sound: Copy
    unfit: set[tuple[bool, str]]  # tests that failed without a fault, too, and whether kernels were plain Python then


class Trial(NamedTuple):
    """A fault that is being tried.

    Args:
        fault: In the faulty copy now.
        tests: That reach it, the quickest first.
    """

    fault: Fault
    tests: Sequence[str]
    known: reach.Reach
    pair: Pair

    def judge(self, quick_lane: frozenset[str]) -> dict[str, Verdict]:
        """Return the verdicts of both lanes on it."""
        if not self.tests:
            return dict.fromkeys(LANES, Verdict("unreached"))
        quickest = [it for it in self.tests if it in quick_lane]
        if self.fault.path.startswith(reach.COMPILED):
            if reach.leaves_kernels(ROOT, self.fault.path, self.fault.line):
                self.pair.faulty.take_kernels(self.pair.sound)
            else:
                found = self._run(quickest, "quick", PLAIN_S, plain=True)
                if found.word == "found":
                    return dict.fromkeys(LANES, found)
                self.pair.faulty.compile()
        else:
            self.pair.faulty.take_kernels(self.pair.sound)
        quick = self._run(quickest, "quick", MOST_S["quick"])
        return {
            "quick": quick,
            "full": quick if quick.word == "found" else self._run(self.tests, "full", MOST_S["full"]),
        }

    def _run(self, tests: Sequence[str], lane: str, most_s: float, *, plain: bool = False) -> Verdict:
        """Return the verdict of tests on it."""
        if not tests:
            return Verdict("unreached")
        unfit, limit_s = self.pair.unfit, MOST_PLAIN_S if plain else 4 * most_s
        left = [test for test in chosen(tests, self.known, most_s) if (plain, test) not in unfit]
        for _ in range(WRONGLY_FAILED):
            if not left:
                break
            failed = self.pair.faulty.first_failure(left, lane, plain=plain, most_s=limit_s)
            if failed is None:
                break
            suspects = [failed] if failed else left
            alone = self.pair.sound.first_failure(suspects, lane, plain=plain, most_s=limit_s)
            if alone is None:
                return Verdict("found", failed, "plain Python" if plain else "compiled")
            unfit.add((plain, alone or failed))
            left = [test for test in left if test != (alone or failed)] if failed or alone else []
        return Verdict("missed")


def chosen(tests: Sequence[str], known: reach.Reach, most_s: float) -> list[str]:
    """Return the quickest of some tests, as many as take no longer than a bound, and one at least."""
    taken, sum_s = list[str](), 0.0
    for test in tests:
        sum_s += known.times_s[test]
        if sum_s > most_s and taken:
            break
        taken.append(test)
    return taken


def tests_of_lane(root: Path, lane: str) -> frozenset[str]:
    """Return the names of the tests of a lane."""
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:randomly", *LANES[lane]]
    listed = subprocess.run(line, cwd=root, capture_output=True, text=True, check=True, timeout=600).stdout
    return frozenset(it for it in listed.splitlines() if "::" in it)


def measure() -> Iterator[Row]:
    """Record what tests reach, seed faults, and count those that are found."""
    kept = KEPT / reach.state_of(ROOT)
    kept.mkdir(parents=True, exist_ok=True)
    if not (kept / "reach" / "done").exists():
        progress(f"recording which test reaches which line, into {kept}")
        reach.record(ROOT, kept / "reach", ["-q", "-m", "", "-n", "5", "--dist", "loadfile"])
        (kept / "reach" / "done").touch()
    known = reach.read(ROOT, kept / "reach")
    quick_lane = tests_of_lane(ROOT, "quick")
    faults = sample(ROOT, FAULTS, SEED)
    results = kept / "verdicts.json"
    verdicts: dict[str, dict[str, list[str]]] = json.loads(results.read_text()) if results.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        pairs: SimpleQueue[Pair] = SimpleQueue()
        sound, unfit = Copy(ROOT, Path(folder) / "sound"), set[tuple[bool, str]]()
        sound.compile()
        for at in range(len(os.sched_getaffinity(0))):
            pairs.put(Pair(Copy(ROOT, Path(folder) / f"faulty-{at}"), sound, unfit))

        def examine(fault: Fault) -> None:
            pair, began_s = pairs.get(), time.monotonic()
            try:
                tests = known.tests_of(ROOT, fault.path, fault.line)
                with pair.faulty.with_fault(fault):
                    said = Trial(fault, tests, known, pair).judge(quick_lane)
            finally:
                pairs.put(pair)
            verdicts[fault.name] = {lane: list(verdict) for lane, verdict in said.items()}
            results.write_text(json.dumps(verdicts, indent=1), encoding="utf-8")
            progress(f"{len(verdicts)} of {len(faults)}, {time.monotonic() - began_s:.0f} s: {fault.name}: "
                     f"quick {said['quick'].word}, full {said['full'].word}")  # fmt: skip

        with ThreadPoolExecutor(pairs.qsize()) as pool:
            try:
                list(pool.map(examine, [fault for fault in faults if fault.name not in verdicts]))
            finally:  # at Ctrl-C too: what has not begun is left for the next run
                pool.shutdown(wait=False, cancel_futures=True)
    ours = [verdicts[fault.name] for fault in faults]
    found = {lane: sum(verdict[lane][0] == "found" for verdict in ours) for lane in LANES}
    yield Row("faults seeded", len(ours), "faults")
    yield Row("reached by no test", sum(verdict["full"][0] == "unreached" for verdict in ours), "faults")
    yield Row("found by make test-full", found["full"], "faults")
    plain = sum(verdict["full"][2] == "plain Python" for verdict in ours)
    yield Row("of those with kernels as plain Python, not tried compiled", plain, "faults")
    yield Row("found by make test, of those", 100.0 * found["quick"] / max(1, found["full"]), "%", least=97.0)


if __name__ == "__main__":
    main(measure)
