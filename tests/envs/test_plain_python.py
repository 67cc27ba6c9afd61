"""The same episode by compiled code and by plain Python."""

import os
import sys

import pytest

from tests.envs.random_run import episode_digest
from tests.support import processes


@pytest.mark.parametrize("action", ["node", "gpu", "candidate"])
def test_plain_python_runs_what_compiled_code_runs_to_the_bit(action: str) -> None:
    code = f"from tests.envs.random_run import episode_digest; print(episode_digest({action!r}))"
    plain = processes.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.strip() == episode_digest(action)
