"""Why a policy was not heard, as kinds that can be counted."""

from enum import StrEnum

from ...cluster.files.errors import PluginError
from ...cluster.files.output_file import in_one_line


class Miss(StrEnum):
    """Kinds of reasons; what exactly happened stands in the decision."""

    LATE = "late"  # no answer before the deadline
    RAISED = "raised"  # it raised an error
    REFUSED = "refused"  # its answer cannot be carried out
    RUBBISH = "rubbish"  # its process sent what is no answer
    DEAD = "dead"  # its process has ended
    UNLOADABLE = "unloadable"  # it cannot be loaded
    LOADING = "loading"  # it is being loaded
    BEHIND = "behind"  # it has not yet taken in all that has happened
    RESTING = "resting"  # it is not asked for a while after misses


WORDS = {  # for who may not read the reason: it may name other people's jobs, and files of the scheduler
    Miss.LATE: "it did not answer in time",
    Miss.RAISED: "it raised an error",
    Miss.REFUSED: "its answer could not be carried out",
    Miss.RUBBISH: "what it sent was no answer",
    Miss.DEAD: "its process had ended",
    Miss.UNLOADABLE: "it could not be loaded",
    Miss.LOADING: "it was being loaded",
    Miss.BEHIND: "it had not yet taken in all that had happened",
    Miss.RESTING: "it rested after misses",
}
MOST_REASON = 500  # characters
BLAMELESS = frozenset({Miss.LOADING, Miss.BEHIND, Miss.RESTING})


class MissError(PluginError):
    """A policy that was not heard.

    Args:
        kind: Of the reason.
        reason: For people. It may come from a stranger: it becomes one line that can be printed, of some length.
    """

    def __init__(self, kind: Miss, reason: str) -> None:
        head = reason[: 2 * MOST_REASON]
        super().__init__(in_one_line(head)[:MOST_REASON])
        self.kind = kind
