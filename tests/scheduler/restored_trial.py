"""Trials of the scheduler on this machine whose store can go back to an older copy."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from longshore.cluster.model.placement import Placement
from longshore.scheduler.backends.protocol import Attempt, Backend
from longshore.scheduler.control.adoption import UNKNOWN_EVENT
from longshore.scheduler.store.copying import back_up, swap_in_backup
from longshore.scheduler.store.database import open_store
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.trials import Trial, Way

NODES = {"a": 4, "b": 4}


class ListingWay(Way):
    """A way on which the backend lists its attempts."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.capabilities = replace(self.capabilities, lists_attempts=True)

    def launched(self) -> Mapping[str, tuple[Attempt, Placement]]:
        self.before("launched")
        return self.backend.launched()


class Restored(Trial):
    """A trial whose store can go back to what it was."""

    def keep(self) -> None:
        back_up(self.folder / "store.db", self.folder / "kept.db")

    def go_back(self) -> None:
        """Put what was kept in the place of the store, and start another scheduler."""
        self.store.close()
        swap_in_backup(self.folder / "kept.db", self.folder / "store.db", "replaced")
        self.store = open_store(f"sqlite:///{self.folder / 'store.db'}")
        self.crash()

    def crash(self) -> None:
        self.way = ListingWay(self.make())
        self.scheduler = self.another()

    def unknown(self) -> list[str]:
        return [it.name for it in self.scheduler.unknown_attempts.unresolved]

    def told(self) -> list[str]:
        return [event.now for event in self.events() if event.kind == UNKNOWN_EVENT]


@contextmanager
def restored_trial(folder: Path) -> Iterator[Restored]:
    """Make a trial in a folder; in the end it is closed, and all its attempts are ended."""
    with closing(Restored(folder, NODES)) as trial:
        yield trial
    end_all(folder)
