"""The same episode by compiled code and by plain Python."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from longshore.envs.batch import Batch, View
from tests.envs.random_run import small_problem, steps_of_episode


def episode_digest(action: str) -> str:
    """Return a digest of all that short random episodes show, to the bit."""
    digest = hashlib.sha256()
    for order, ring in (("fifo", True), ("shortest", False)):
        problem = small_problem(2, jobs=6, order=order, waiting=True, faults=4)
        rules = problem.rules._replace(ring=ring)
        batch = Batch(type(problem)(problem.cluster, problem.scenarios, problem.process, rules), View(action=action), 1)
        for _ in steps_of_episode(batch, 1, np.random.default_rng(1)):
            for array in (batch.observations, batch.rewards, batch.masks, batch.ended, batch.sim.state.now_s):
                digest.update(array.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("action", ["node", "gpu", "candidate"])
def test_plain_python_runs_what_compiled_code_runs_to_the_bit(action: str) -> None:
    code = f"from tests.envs.test_plain_python import episode_digest; print(episode_digest({action!r}))"
    plain = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.strip() == episode_digest(action)
