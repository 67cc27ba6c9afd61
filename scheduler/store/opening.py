"""Opening a store, and the two ways into it: reads on any thread, writes through one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from .engines import connect, lock_for_reading
from .errors import StoreError, StoreUnreachableError
from .group_commit import Writer
from .migrate import migrate

T = TypeVar("T")


class Store:
    """An open store. Every thread may use it; a process has one.

    Args:
        engine: Of a database with the schema of this version.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writer = Writer(engine)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do work in a transaction and return what it returns, once that is committed.

        Requests that wait at the same time share a transaction, each behind a savepoint: one that raises is undone
        alone. So the work has to be short and must call nothing outside, or it holds up all others.

        Raises:
            StoreUnreachableError: If the database does not answer.
            Exception: What the work raises; then nothing of it was written.
        """
        with _reachable():
            return self._writer.write(work)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection for reading. Leave soon: an open read keeps SQLite's log from being emptied.

        Raises:
            StoreUnreachableError: If the database does not answer.
        """
        with _reachable(), self.engine.connect() as tx:
            lock_for_reading(tx)
            yield tx

    def watch_commits(self, observe_s: Callable[[float], object]) -> None:
        """Let somebody be told how long each transaction that writes takes, in seconds, on the writer's thread."""
        self._writer.observe_s = observe_s

    def close(self) -> None:
        """Finish the writes that wait and close all connections."""
        self._writer.close()
        self.engine.dispose()


def open_store(url: str) -> Store:
    """Open a store, make it if there is none, and bring it to the schema of this version.

    Args:
        url: `sqlite:///FILE`, with `?durability=full` for transactions that survive a loss of power, or
            `postgresql://USER@HOST/DATABASE`.

    Raises:
        StoreUnreachableError: If the database does not answer.
        StoreError: If it is not a store, is a newer version's, or cannot be used.
    """
    engine = connect(url)
    try:
        _migrate(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)


def _migrate(engine: Engine) -> None:
    """Migrate a store; errors name it."""
    place = engine.url.render_as_string(hide_password=True)
    try:
        with _reachable():
            migrate(engine)
    except DBAPIError as error:
        raise StoreError(f"{place}: {error.orig}") from error
    except StoreError as error:
        raise type(error)(f"{place}: {error}") from error


@contextmanager
def _reachable() -> Iterator[None]:
    """Tell a database that does not answer from a mistake in a statement."""
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise StoreUnreachableError(f"the store does not answer: {error.orig}") from error
    except PoolTimeoutError as error:
        raise StoreUnreachableError(f"the store does not answer: {error}") from error
