"""`longshore serve`."""

import gc
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....cluster.files.errors import InputError, LongshoreError
from ...access.browsers import link_path
from ...access.token_file import FILE, link_token
from ...files.paths import check_present_folder
from ...logging_json import LogFormat, count_repeats, log_as_json
from .getting_ready import compile_first, saying

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ...access.browsers import Browsers
    from ...service.service import Service
    from ...settings import Chosen


def serve(
    config: Annotated[Path | None, typer.Option(help="Configuration file (docs/configuration.md).")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; 4 nodes of 4 slots if left out.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the store, the jobs and their logs are; .longshore if left out.")
    ] = None,
    store: Annotated[str | None, typer.Option(help="URL of the store; SQLite in the folder if left out.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy that decides; patient alone if left out.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to serve at; 127.0.0.1 if left out.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port; 8765 if left out.")] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Take anybody on this machine for the operator, without a token.")
    ] = False,
    as_root: Annotated[
        bool, typer.Option("--as-root", help="Run as root, and so every job that it starts itself.")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="Of the log: text for people, json for programs.")] = (
        LogFormat.TEXT
    ),
) -> None:
    """Run a scheduler with its API, on http://127.0.0.1:8765 unless told otherwise. Options go before the file."""
    from ...settings import Chosen, read_settings

    if log_format is LogFormat.JSON:
        log_as_json()
    count_repeats()
    chosen = Chosen() if config is None else read_settings(config)
    given = {"cluster": cluster, "folder": folder, "store": store, "host": host, "port": port}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    changes |= {name: True for name, is_set in (("open", open_), ("as_root", as_root)) if is_set}
    if policy is not None:
        changes["policy"] = chosen.settings.policy.model_copy(update={"name": policy})
    run_service(chosen._replace(settings=chosen.settings.model_copy(update=changes)))


def run_service(chosen: "Chosen") -> None:
    """Serve until a signal comes.

    Raises:
        LongshoreError: If something that was chosen cannot be used.
    """
    from ...serve.first_process import leave_first_place

    check_present_folder()
    leave_first_place()
    from ...serve.app import create_app
    from ...service.service import Service

    settings = chosen.settings
    if os.geteuid() == 0 and not settings.as_root:
        raise InputError(
            "serve would run as root, and so would every job that it starts on this machine",
            "start it as another user, or with --as-root",
        )
    with _listening(settings.host, settings.port) as listener:
        service = Service(chosen)
        try:
            policy, fallback = settings.policy.name, settings.policy.fallback
            compile_first(fallback, policy)
            with saying(f"loading {policy or fallback}"):
                service.take_up()
        except LongshoreError:
            service.close()
            raise
        if service.first_token is not None:
            link_token(settings.folder / FILE, settings.port)
        app = create_app(service)
        _welcome(service, app.state.browsers)
        _answer_requests(service, app, listener)


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be served at: {(error.strerror or str(error)).partition(' (')[0]}",
            "is a scheduler running? else choose --port",
        ) from error


def _welcome(service: "Service", browsers: "Browsers") -> None:
    settings, kind = service.settings, "slots" if service.slots else "GPUs"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    gpus, nodes = service.layout.gpus, len(service.layout.nodes)
    typer.echo(f"Longshore serves {gpus} {kind} on {nodes} nodes at http://{host}:{settings.port}")
    if service.first_token is not None and sys.stdout.isatty():  # a log may be read by others
        path = link_path(browsers.code_for(service.first_token, service.now_s()))
        typer.echo(f"Dashboard, by a link that works once: http://{host}:{settings.port}{path}")
    if service.is_open:
        typer.echo("It is open: whoever can log in on this machine may do everything with it.")
    if service.slots:
        typer.echo("Its slots behave like GPUs, but no GPU is behind them. Ctrl-C stops it; jobs run on.")


def _answer_requests(service: "Service", app: "FastAPI", listener: socket.socket) -> None:
    from ...serve.server import ApiServer, raise_files

    # What is loaded by now stays: looking through it for garbage takes 100 ms, in the midst of an answer.
    gc.collect()
    gc.freeze()
    ApiServer(app, service, raise_files(), log_level="warning").run(sockets=[listener])
