"""One thread that writes for all: requests that wait at the same time share a transaction."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Connection, Engine

from .engines import lock_for_writing
from .errors import StoreUnreachableError

T = TypeVar("T")

GROUP = 64  # most requests in one transaction


class _Waiting(Protocol):
    """A request, whatever its result is."""

    def run(self, tx: Connection) -> None: ...

    def settle(self, error: BaseException | None = None) -> None: ...


class _Request(Generic[T]):
    """Work that waits for its transaction. A bare lock tells that it is over; a Future takes several times as long."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work
        self._result: T
        self._error: BaseException | None = None
        self._open = Lock()
        self._open.acquire()

    def run(self, tx: Connection) -> None:
        """Do the work, or leave no trace of it in the transaction."""
        mark(tx, "SAVEPOINT request")
        try:
            self._result = self._work(tx)
        except BaseException as error:  # whatever it is, it goes to the one who asked
            self._error = error
            mark(tx, "ROLLBACK TO SAVEPOINT request")
        mark(tx, "RELEASE SAVEPOINT request")

    def settle(self, error: BaseException | None = None) -> None:
        """Tell that the transaction is over, and how it failed; an error of the work itself goes before."""
        self._error = self._error or error
        self._open.release()

    def outcome(self) -> T:
        """Wait until the transaction is over; return what the work returned, or raise what went wrong."""
        self._open.acquire()
        if self._error is not None:
            raise self._error
        return self._result


class Writer:
    """The thread and its queue.

    Args:
        engine: Of the store.
    """

    def __init__(self, engine: Engine) -> None:
        self.observe_s: Callable[[float], object] = lambda _took_s: None  # told how long each transaction took
        self._engine = engine
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._closing = Lock()
        self._closed = False
        self._thread = Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Return what the work returns, after its transaction is committed.

        Raises:
            ValueError: If the writer is closed, or if the work itself asks for a write.
            Exception: What the work or the commit raises; then nothing of the work was written.
        """
        if current_thread() is self._thread:
            raise ValueError("a write inside a write would wait for itself; pass the connection on")
        request = _Request(work)
        with self._closing:
            if self._closed:
                raise ValueError("the store is closed")
            self._waiting.put(request)
        return request.outcome()

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        with self._closing:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            group, last = self._next_group()
            if group:
                self._commit(group)
            if last:
                return

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        """Wait for a request and return it with those behind it, and whether they are the last."""
        group: list[_Waiting] = []
        request = self._waiting.get()
        while request is not None:
            group.append(request)
            if len(group) == GROUP:
                return group, False
            try:
                request = self._waiting.get_nowait()
            except Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_Waiting]) -> None:
        failure: Exception | None = None
        began = time.perf_counter()
        try:
            with self._engine.begin() as tx:
                lock_for_writing(tx)
                for request in group:
                    request.run(tx)
        except Exception as error:
            failure = error
        self.observe_s(time.perf_counter() - began)
        for request in group:
            request.settle(failure)


def mark(tx: Connection, statement: str) -> None:
    """Set or leave a savepoint through the driver: SQLAlchemy's take longer than the writes between them."""
    try:
        cursor = tx.connection.cursor()
        cursor.execute(statement)
        cursor.close()
    except Exception as error:  # each driver has its own; whichever it is, the transaction is gone
        raise StoreUnreachableError(f"a transaction was lost: {error}") from error
