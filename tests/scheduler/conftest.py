from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from longshore.scheduler.client import Client
from longshore.scheduler.store.database import Store, connect, open_store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from tests.command_line import Command, Done

from .served import Served
from .served_rings import CLUSTER
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
    token = store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "test", now_s=0.0, ttl_s=60.0))
    assert token is not None
    return token


class Here:
    """Calls commands about a scheduler in this process, where none is to be proven of a process of its own."""

    def __init__(self, longshore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longshore, self.monkeypatch = longshore, monkeypatch
        self.clients: list[Client] = []
        real = Client.__init__

        def note(client: Client, *arguments: Any) -> None:
            real(client, *arguments)
            self.clients.append(client)

        monkeypatch.setattr(Client, "__init__", note)

    def close(self) -> None:
        """Close the connections that the end of a process would close."""
        for client in self.clients:
            client._http.close()

    def __call__(self, served: Served, *arguments: str) -> Done:
        self.monkeypatch.chdir(served.folder)
        self.monkeypatch.delenv("LONGSHORE_TOKEN", raising=False)
        for name, value in {"LONGSHORE_URL": served.url, **served.environment}.items():
            self.monkeypatch.setenv(name, value)
        return self.longshore(*arguments)


@pytest.fixture
def here(longshore: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with closing(Here(longshore, monkeypatch)) as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A scheduler for all tests of a file."""
    it = Served(tmp_path_factory.mktemp("served"))
    it.start()
    yield it
    if it.process is not None:
        it.end()


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """The same, started again if a test has ended it; its jobs are gone when the test is over."""
    if running.process is None:
        running.start()
    yield running
    if running.process is not None:
        running.cancel_all()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    """A scheduler of two nodes of two slots."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    it = Served(tmp_path, "--cluster", "cluster.yaml")
    it.start()
    yield it
    it.cancel_all()
    it.end()
