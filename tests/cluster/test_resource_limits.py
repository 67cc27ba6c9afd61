"""Limits that a process gives itself, under any that it was started with."""

import resource
import sys

import pytest

from tests.support import processes

# The hard limit before, the limit asked for, and the limits after.
CASES = [
    (resource.RLIM_INFINITY, 5000, 5000),
    (3600, 7681, 3600),
    (3600, 3600, 3600),
    (3600, 60, 60),
    (0, 1, 0),
    (0, 0, 0),
]
LIMIT = """\
import resource, sys
from longshore.cluster.files.processes import limit_resource
kind, hard, most = map(int, sys.argv[1:])
soft, _ = resource.getrlimit(kind)
given = resource.getrlimit(kind)[1] if hard == resource.RLIM_INFINITY else hard
resource.setrlimit(kind, (given if hard != resource.RLIM_INFINITY else soft, given))
limit_resource(kind, most)
print(*resource.getrlimit(kind))
"""


@pytest.mark.parametrize(("hard", "most", "after"), CASES)
def test_a_hard_limit_is_lowered_and_never_raised(hard: int, most: int, after: int) -> None:
    kind = resource.RLIMIT_CORE  # which no process of a test needs
    if hard == resource.RLIM_INFINITY and resource.getrlimit(kind)[1] != resource.RLIM_INFINITY:
        pytest.skip("core files are limited here")
    line = [sys.executable, "-c", LIMIT, str(kind), str(hard), str(most)]
    done = processes.run(line, capture_output=True, check=True)
    assert done.stdout.split() == [str(after), str(after)]
