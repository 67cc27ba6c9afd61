"""How long the Slurm backend waits, and how often it asks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """Of the Slurm backend, in seconds."""

    deadline_s: float = 5.0  # of a command; squeue takes 0.04 s for 1,000 jobs
    rest_s: float = 5.0  # after a missed deadline, in which the next calls fail at once: the scheduler has other work
    old_s: float = 1.0  # Slurm is asked of jobs that came by sbatch no more often than this
    unasked_s: float = 10.0  # after which it is asked though nobody wants to know of all jobs
    again_s: float = 5.0  # between two tries to end the same job
    stray_s: float = 60.0  # that a lost node has to be back for: within it Slurm kills what was left there


TIMES = Times()
