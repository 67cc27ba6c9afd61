"""Dates in traces."""

from datetime import datetime

EPOCH = datetime(1970, 1, 1)
FIRST_YEAR, LAST_YEAR = 1970, 2100  # no GPU cluster ran outside of them


def epoch_s(text: str) -> float:
    """Return an ISO 8601 date and time as seconds since 1970; without a zone it is taken as UTC.

    A zone that is left out cancels out, since submissions count from the first one.

    Raises:
        ValueError: If the text is no date, or its year is not between 1970 and 2100; the message shows it.
    """
    date = datetime.fromisoformat(text.strip())
    if not FIRST_YEAR <= date.year <= LAST_YEAR:
        raise ValueError(f"year {date.year} is not between {FIRST_YEAR} and {LAST_YEAR}")
    return date.timestamp() if date.tzinfo else (date - EPOCH).total_seconds()
