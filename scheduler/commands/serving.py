"""`longshore serve`."""

import gc
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...cluster.errors import InputError, LongshoreError
from ..log_lines import LogFormat, count_repeats, log_as_json

if TYPE_CHECKING:
    from ..service import Service
    from ..settings import Chosen

STOP_S = 5  # that requests have to come to their end


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
    log_format: Annotated[LogFormat, typer.Option(help="Of the log: text for people, json for programs.")] = (
        LogFormat.TEXT
    ),
) -> None:
    """Run a scheduler with its API, on http://127.0.0.1:8765 unless told otherwise. Options go before the file."""
    from ..settings import Chosen, read_settings

    if log_format is LogFormat.JSON:
        log_as_json()
    count_repeats()
    chosen = Chosen() if config is None else read_settings(config)
    given = {"cluster": cluster, "folder": folder, "store": store, "host": host, "port": port}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if policy is not None:
        changes["policy"] = chosen.settings.policy.model_copy(update={"name": policy})
    run_service(chosen._replace(settings=chosen.settings.model_copy(update=changes)))


def run_service(chosen: "Chosen") -> None:
    """Serve until a signal comes.

    Raises:
        LongshoreError: If something that was chosen cannot be used.
    """
    from ..service import Service

    settings = chosen.settings
    with _listening(settings.host, settings.port) as listener:
        service = Service(chosen)
        try:
            typer.echo(f"loading {settings.policy.name or settings.policy.fallback} ...")
            service.take_up()
        except LongshoreError:
            service.close()
            raise
        _welcome(service)
        _answer_requests(service, listener)


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be served at: {(error.strerror or str(error)).partition(' (')[0]}",
            "is a scheduler running? else choose --port",
        ) from error


def _welcome(service: "Service") -> None:
    settings, kind = service.settings, "slots" if service.slots else "GPUs"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    gpus, nodes = service.layout.gpus, len(service.layout.nodes)
    typer.echo(f"Longshore serves {gpus} {kind} on {nodes} nodes at http://{host}:{settings.port}")
    if service.slots:
        typer.echo("Its slots behave like GPUs, but no GPU is behind them. Ctrl-C stops it; jobs run on.")


def _answer_requests(service: "Service", listener: socket.socket) -> None:
    import uvicorn

    from ..api.app import create_app

    class Server(uvicorn.Server):
        """Lets streams end when a signal comes; it would wait for them for ever."""

        def handle_exit(self, sig: int, frame: object) -> None:
            service.ends.set()
            super().handle_exit(sig, frame)  # type: ignore[arg-type]

    app = create_app(service)
    # What is loaded by now stays: looking through it for garbage takes 100 ms, in the midst of an answer.
    gc.collect()
    gc.freeze()
    Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            log_config=None,  # its lines are written like all others
        )
    ).run(sockets=[listener])
