"""Why a policy was not heard, as one of few kinds: texts are for people, kinds are for counting."""

from enum import StrEnum


class Miss(StrEnum):
    """Kinds of misses."""

    LATE = "late"  # no answer within the deadline
    RESTING = "resting"  # it missed shortly before, and is not asked
    LOADING = "loading"  # its process is not ready yet
    UNLOADABLE = "unloadable"  # its process could not load it
    ENDED = "ended"  # its process has ended
    NONSENSE = "nonsense"  # what it sent is no answer
    REFUSED = "refused"  # what it chose is not allowed
    ERROR = "error"  # anything else: the policy raised an error


_TOLD_BY = (
    ("no decision within", Miss.LATE),
    ("it rests after a miss", Miss.RESTING),
    ("it is being loaded", Miss.LOADING),
    ("cannot be loaded", Miss.UNLOADABLE),
    ("was not loaded within", Miss.UNLOADABLE),
    ("process has ended", Miss.ENDED),
    ("process sent what is no answer", Miss.NONSENSE),
    ("process answered something", Miss.NONSENSE),
    (" may not ", Miss.REFUSED),
    (" and was given ", Miss.REFUSED),
    ("there is no GPU ", Miss.REFUSED),
    (" is busy", Miss.REFUSED),
    (" is out of service", Miss.REFUSED),
    (" does not wait", Miss.REFUSED),
)


def miss_of(text: str) -> Miss | None:
    """Return the kind of a miss that a decision's record tells, None if the policy was heard."""
    if not text:
        return None
    return next((kind for fragment, kind in _TOLD_BY if fragment in text), Miss.ERROR)
