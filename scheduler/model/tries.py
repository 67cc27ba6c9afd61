"""How often a job is tried again, by whose fault its attempts ended."""

from typing import NamedTuple

NO_PROGRESS = 3  # attempts in a row without a newer checkpoint before a job is held


class Tries(NamedTuple):
    """How often a job may be tried again after an end of each class, or has been."""

    infra: int = 0
    resource: int = 0
    user: int = 0
    asked: int = 0  # the program asked to be run again
    ambiguous: int = 0


DEFAULT_TRIES = Tries(infra=20, resource=1, user=0, asked=20, ambiguous=1)
