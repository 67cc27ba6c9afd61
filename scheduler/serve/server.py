"""The HTTP server of the API, which strangers cannot use up."""

import asyncio
import logging
import resource
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from ..service.service import Service
from .connections import Patience, bounded_protocol, bounds_of
from .rare_lines import Seldom

log = logging.getLogger(__name__)

PATIENCE = Patience()
STOP_S = 5  # that requests have to come to their end
BACKLOG = 128  # connections that wait to be taken; asyncio tries so many at a time, also when files have run out
MOST_FILES = 65536  # more are never needed, and some programs of jobs, which inherit the bound, close all one by one
NO_FILES = "socket.accept() out of system resource"  # what asyncio says of it, once for each try


def raise_files() -> int:
    """Let this process open as many files as it may, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


class ApiServer(uvicorn.Server):
    """Serves an application until a signal comes; its streams end then, for which it would wait for ever.

    Args:
        app: What answers.
        service: What the application serves.
        files: That this process may open.
        patience: With clients.
        options: Others of uvicorn.
    """

    def __init__(
        self, app: FastAPI, service: Service, files: int, *, patience: Patience = PATIENCE, **options: Any
    ) -> None:
        self._service = service
        for name in (__name__, "uvicorn.error"):
            logger = logging.getLogger(name)
            if not any(isinstance(it, Seldom) for it in logger.filters):
                logger.addFilter(Seldom())
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_protocol(bounds_of(files), patience),
                ws="none",
                backlog=BACKLOG,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_S,
                log_config=None,  # its lines are written like all others
                **options,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        asyncio.get_running_loop().set_exception_handler(_note)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: object) -> None:
        """Begin to stop."""
        self._service.ends.set()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say once a minute that no connection can be taken; asyncio tries again after a second."""
    if context.get("message") == NO_FILES:
        log.error("no connection can be taken: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)
