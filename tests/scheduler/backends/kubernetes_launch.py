"""Launches an attempt on Kubernetes in a process of its own, for a test to kill.

It is given a kubeconfig, the scheduler's folder and the script of the attempt.
"""

import sys
from pathlib import Path

from longshore.scheduler.backends.kubernetes.backend import KubernetesBackend
from longshore.scheduler.backends.kubernetes.settings import KubernetesSettings
from longshore.scheduler.backends.protocol import Attempt
from tests.scheduler.backends.attempts import NODES, THREE_GPUS


def attempt_of(script: str) -> Attempt:
    """Return the attempt that is launched."""
    return Attempt("ls-killed-1", "killed", 1, ("sh", "-c", script), "", {})


if __name__ == "__main__":
    settings = KubernetesSettings(image="train", kubeconfig=Path(sys.argv[1]), deadline_s=60.0)
    KubernetesBackend(Path(sys.argv[2]), NODES, settings).launch(attempt_of(sys.argv[3]), THREE_GPUS)
