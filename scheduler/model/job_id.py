"""Names of jobs: ULIDs in lower case, which sort by the time of their making."""

import secrets

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
LENGTH = 26


def new_job_id(now_s: float) -> str:
    """Return an id that nobody else has: 48 bits of Unix time in milliseconds, 80 of chance."""
    return job_id_of(now_s, secrets.randbits(80))


def job_id_of(at_s: float, chance: int) -> str:
    """Return the id of a time in Unix seconds and of 80 bits."""
    number = (int(at_s * 1000.0) & (1 << 48) - 1) << 80 | chance
    return "".join(ALPHABET[number >> 5 * place & 31] for place in reversed(range(LENGTH)))


def name_of(job: str, number: int) -> str:
    """Return what a backend knows an attempt of a job by."""
    return f"ls-{job}-{number}"


def is_job_id(text: str) -> bool:
    """Say whether a text could be the id of a job."""
    return len(text) == LENGTH and set(text) <= set(ALPHABET)
