"""Trace formats that are a table of jobs in csv."""

from collections.abc import Callable, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ..model.workload import Workload
from .jobs import Jobs, workload_from
from .table import Rows, columns_of, read_rows

DATES = "as dates, and durations in seconds"


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """A trace format.

    Args:
        columns: That a file must have.
        marks: Says by the columns of a file whether it is in this format; looks at as few as set the format apart, so
            that `read` can name what is missing.
        jobs: Returns the jobs of some rows.
        optional: Columns that are read where a file has them.
        times: How the columns have them, such as "in seconds".
    """

    columns: tuple[str, ...]
    marks: Callable[[Set[str]], bool]
    jobs: Callable[[Rows], Jobs]
    optional: tuple[str, ...] = ()
    times: str = ""

    def sniff(self, head: str) -> bool:
        """Return whether a file that begins so is in this format."""
        return self.marks(columns_of(head))

    def read(self, path: Path) -> Workload:
        """Return the jobs of a file; see docs/formats.md.

        Raises:
            InputError: If it cannot be used.
        """
        with closing(read_rows(path, self.columns, optional=self.optional)) as rows:
            return workload_from(path, map(self.jobs, rows))
