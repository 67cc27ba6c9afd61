"""What the scheduler that leads notes of a ring that runs."""

from typing import NamedTuple

from ...backends.protocol import Desk
from ...failover.wire import Want
from ...model.job_id import name_of
from ...store.monitoring.replacements import ReplacementRow
from ...store.rows.attempts import AttemptRow
from .seat_links import Probing
from .vacancies import Chosen


class Checked(NamedTuple):
    """A GPU that a ring gets if it passes its checks."""

    chosen: Chosen
    since_s: float  # by `time.monotonic`


class LiveRing:
    """A ring that runs.

    Args:
        row: Its attempt.
        desk: Of it.
    """

    def __init__(self, row: AttemptRow, desk: Desk) -> None:
        self.row, self.desk = row, desk
        self.given: list[ReplacementRow] | None = None  # None while the store is to be asked
        self.checked: dict[int, Checked] = {}  # GPUs that are reserved and not given yet
        self.probing: Probing | None = None  # links that were measured last
        self.waits_since_s = 0.0  # for links to be measured, by `time.monotonic`; 0 if it does not
        self.reminded: Want | None = None  # the last wish that came while members were on their way
        self.told = -1  # generation about whose empty seats people were told
        self.refused = -1  # generation whose coordinator was told that nobody comes
        self.told_slow: tuple[int, ...] = ()  # slow members about whom people were told that they have no backup
        self.short = 0  # seats that it goes on without, as nobody came; 0 after another scheduler

    @property
    def name(self) -> str:
        """What the backend knows it by."""
        return name_of(self.row.job_id, self.row.number)
