"""A rank that is killed as memory runs out, in a control group of its own that has little of it."""

import os
import shlex
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.rules.attempts import ExitClass, classify_end
from tests.scheduler.backends.attempts import THREE_GPUS, shell_attempt, wait_for_end

MOST_BYTES = 48 << 20
PLACES = {  # of the two versions of control groups
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}


@pytest.fixture
def little() -> Iterator[Path]:
    """A control group for whoever joins it."""
    for place, limit in PLACES.items():
        folder = place / f"longshore-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
            if (folder / limit).exists():
                (folder / limit).write_text(str(MOST_BYTES))
                yield folder
                folder.rmdir()
                return
            folder.rmdir()
        except OSError:
            continue
    pytest.skip("no control group with a limit of memory can be made here: that takes root")


def test_a_rank_that_is_killed_as_memory_runs_out_differs_from_any_other_kill(
    backend: LocalBackend, little: Path
) -> None:
    hungry = f"echo $$ > {little}/cgroup.procs && exec {sys.executable} -S -c 'bytearray({4 * MOST_BYTES})'"
    attempt = shell_attempt(f"[ $RANK = 1 ] || exec sleep 1000; {hungry}", environment={"PATH": os.defpath})
    backend.launch(attempt, THREE_GPUS)
    reported = classify_end(wait_for_end(backend, attempt))
    assert reported == (ExitClass.RESOURCE, "rank 1 was killed as memory ran out")

    killed = shell_attempt("[ $RANK = 1 ] || exec sleep 1000; kill -KILL $$")
    backend.launch(killed, THREE_GPUS)
    assert classify_end(wait_for_end(backend, killed))[0] is ExitClass.AMBIGUOUS


@pytest.mark.full
def test_a_rank_that_dies_long_after_its_kill_for_memory_is_still_reported_as_such(
    backend: LocalBackend, little: Path
) -> None:
    """The kernel counts a kill at once; here the count rises by another process, and the rank dies much later."""
    hungry = f"echo $$ > {little}/cgroup.procs && exec {sys.executable} -S -c 'bytearray({4 * MOST_BYTES})'"
    script = f"[ $RANK = 1 ] || exec sleep 1000; (sh -c {shlex.quote(hungry)}); sleep 2; kill -KILL $$"
    attempt = shell_attempt(script, environment={"PATH": os.defpath})
    backend.launch(attempt, THREE_GPUS)
    assert classify_end(wait_for_end(backend, attempt))[0] is ExitClass.RESOURCE
