"""Feeds made-up inputs to one target in a process of its own, and notes at which it is: `hostile.py` watches it.

`python -m benchmarks.hostile_worker TARGET FIRST COUNT NOTES` feeds the inputs of COUNT seeds from FIRST on.
"""

import json
import os
import resource
import struct
import sys
import time
import traceback
import warnings
from mmap import mmap
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from longshore.cluster.files.errors import LongshoreError

from .hostile_targets import TARGETS, Target

NOTE = struct.Struct("qqqd")  # seed, inputs of use, faults, and when it began (monotonic); 0.0 between two inputs
MOST_MEMORY_BYTES = 8 << 30
MOST_FAULTS = 20  # of one worker that are shown in full
WARM_UPS = 200  # inputs before the first counted one: they compile what is compiled


def feed(target: Target, seed: int, folder: Path) -> tuple[bool, str]:
    """Feed the input of a seed; return whether it was of use, and the fault that it showed if any."""
    try:
        data = target.make(Random(f"{target.name} {seed}"))
        return target.feed(data, folder), ""
    except LongshoreError as error:
        words = str(error)
        return False, "" if words.strip() and len(words) < MOST_WORDS else f"an error of {len(words)} characters"
    except BaseException:  # whatever it is: it would have been a traceback
        return False, traceback.format_exc(limit=-6)


MOST_WORDS = 4000


def read_note(path: Path) -> tuple[int, int, int, float]:
    """Return what a worker noted last, by two reads that agree: a single one may meet a half-written note."""
    seen = path.read_bytes()
    while (again := path.read_bytes()) != seen:
        seen = again
    seed, used, faults, at_s = NOTE.unpack(seen)
    return seed, used, faults, at_s


def main() -> None:
    """Feed a range of seeds."""
    name, first, count, notes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    target = TARGETS[name]
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    warnings.simplefilter("error")
    used = faults = 0
    with notes.open("r+b") as file, mmap(file.fileno(), NOTE.size) as note, TemporaryDirectory() as folder:
        for seed in (-1 - k for k in range(WARM_UPS)):
            feed(target, seed, Path(folder))
        for seed in range(first, first + count):
            note[:] = NOTE.pack(seed, used, faults, time.monotonic())
            of_use, fault = feed(target, seed, Path(folder))
            used += of_use
            if fault:
                faults += 1
                if faults <= MOST_FAULTS:
                    print(json.dumps({"seed": seed, "fault": fault}), flush=True)
        note[:] = NOTE.pack(first + count, used, faults, 0.0)


if __name__ == "__main__":
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    main()
