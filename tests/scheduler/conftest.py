from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.store.database.engines import connect
from longshore.scheduler.store.opening import Store, open_store
from longshore.scheduler.store.rows.leases import SCHEDULER, acquire

from .served import Served
from .store.postgresql_server import NoServerError, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    try:
        started = Server()
    except (NoServerError, OSError) as error:
        pytest.skip(f"no PostgreSQL: {error}")
    yield started
    started.remove()


@pytest.fixture
def postgresql_url(server: Server) -> str:
    server.schemas += 1
    url = server.url(f"test{server.schemas}")
    engine = connect(url)
    with engine.begin() as tx:
        tx.exec_driver_sql(f"CREATE SCHEMA test{server.schemas}")
    engine.dispose()
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    name: str = request.getfixturevalue(f"{request.param}_url")
    return name


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def fence(store: Store) -> int:
    token = store.write(lambda tx: acquire(tx, SCHEDULER, "test", now_s=0.0, ttl_s=60.0))
    assert token is not None
    return token


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A scheduler for all tests of a file."""
    it = Served(tmp_path_factory.mktemp("served"))
    it.start()
    yield it
    it.end()


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """The same; its jobs are gone when the test is over."""
    yield running
    running.cancel_all()
