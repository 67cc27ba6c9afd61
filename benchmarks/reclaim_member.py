"""A member of a ring that trains nothing: it does all that members do with their coordinator, without PyTorch.

It holds a lock on a file for its GPU, with its pid in it, and leaves a mark if another process holds it. It is slow as
long as there is a file `slow-JOB-NUMBER` in the folder RECLAIM, and has no more steps to take once `end-JOB` is there.
"""

import fcntl
import os
import sys
import time
from pathlib import Path

from longshore.ring.member_client import (
    AbortedError,
    FinishedError,
    MemberClient,
    RelievedError,
    client_from_environment,
)
from longshore.ring.wire import MemberReady

COMPUTE_S, SLOW = 0.1, 8.0
HOME, JOB = Path(os.environ["RECLAIM"]), os.environ["LONGSHORE_JOB"]


def take_gpu() -> int:
    """Lock the GPU of this process."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
    name = f"{os.environ['LONGSHORE_NODE']}-{gpu}"
    lock = os.open(HOME / "gpus" / name, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        (HOME / "shared" / f"{name}-{JOB}").touch()
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


def compute(control: MemberClient) -> float:
    """Wait as long as a shard takes, and return how long that is."""
    compute_s = COMPUTE_S * (SLOW if (HOME / f"slow-{JOB}-{control.member}").exists() else 1.0)
    time.sleep(compute_s)
    return compute_s


def run_steps(control: MemberClient) -> None:
    """Take part in a generation until it is over."""
    form = control.wait_for_layout()
    control.report_ready(MemberReady(control.member, form.generation, form.generation * 100_000))
    is_first = True
    while not (HOME / f"end-{JOB}").exists():
        control.pulse.compute_s = control.pulse.step_s = compute(control)
        control.begin_apply()
        control.end_apply(control.step + 1)
        if is_first:
            control.report_first_step()
        is_first = False
    control.wait_until_done()


def main() -> None:
    """Be a member until the ring is done."""
    lock = take_gpu()
    control = client_from_environment("", 0)
    control.pulse.until = 1 << 40
    control.start()
    while True:
        try:
            run_steps(control)
        except AbortedError:
            continue
        except RelievedError:
            try:
                while not control.report_trial_step(compute(control), 1.0):
                    pass
            except FinishedError:
                break
        except FinishedError:
            break
    os.close(lock)
    sys.exit(0)


if __name__ == "__main__":
    main()
