import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from longshore.scheduler.serve.app import create_app
from longshore.scheduler.serve.server import DEFAULT_PATIENCE, ApiServer, Patience
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions, UserLimits


def service_in(folder: Path) -> Service:
    return Service(
        ServeOptions(SchedulerSettings(folder=folder, open=True, limits=UserLimits(queued_jobs=20, priority=100)))
    )


@contextmanager
def client_of(app: FastAPI, files: int = 1024, patience: Patience = DEFAULT_PATIENCE) -> Iterator[httpx.Client]:
    """A client of an application behind a real server, without the lifespan that starts the scheduler's thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = ApiServer(app, app.state.service, files, patience=patience, log_level="critical", lifespan="off")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with httpx.Client(base_url=url, trust_env=False, timeout=30.0) as client:
        yield client
    server.should_exit = True
    thread.join()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A scheduler that ticks only when a test lets it."""
    made = service_in(tmp_path / "served")
    yield made
    made.close()


@pytest.fixture
def app(service: Service) -> FastAPI:
    return create_app(service)


@pytest.fixture
def api(app: FastAPI, service: Service) -> Iterator[httpx.Client]:
    with client_of(app) as client:
        yield client
        service.ends.set()


@pytest.fixture(scope="package")
def refusing_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """An API for tests that only are refused, and so leave nothing behind."""
    made = service_in(tmp_path_factory.mktemp("refusing"))
    with client_of(create_app(made)) as client:
        yield client
        made.ends.set()
    made.close()
