"""How members ended: the status of each, and the error by which its log says why. Standard library only."""

from pathlib import Path

from ...files.processes import last_error
from ..wire import GONE_STATUS, RESTART_STATUS
from .forked import UNKNOWN_STATUS


def end_words(status: int, error: str) -> str:
    """Return how a process ended, for people.

    Args:
        status: Minus the signal's number if one ended it.
        error: From its log, "" if that has none.
    """
    how = "an unknown status" if status == UNKNOWN_STATUS else f"status {status}"
    return f"ended with {how}" + (f": {error}" if error else "")


class Logs:
    """Where the output of each member begins in its log, which others had before it."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}

    def begin(self, member: int, log: Path) -> None:
        """Take note of the log of a member that is about to be started; it need not be there yet."""
        self._since[member] = log.stat().st_size if log.is_file() else 0

    def error_of(self, member: int, log: Path | None, status: int) -> str:
        """Return the error by which a member says why it ended; "" of one that ended as it was told to."""
        if log is None or member not in self._since or status in (0, GONE_STATUS, RESTART_STATUS):
            return ""
        return last_error(str(log), since=self._since[member])
