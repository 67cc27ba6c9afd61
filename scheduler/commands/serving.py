"""`longshore serve`, `extender`, `config check` and `dashboard`."""

import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...cluster.files.errors import InputError, LongshoreError, PluginError
from ...cluster.files.output_file import in_one_line
from ...cluster.files.paths import check_present_folder
from ..access.token_file import FILE, link_token
from ..logs import LogFormat, add_repeat_filters, log_as_json
from .options import DEFAULT_URL, DURATION, CaOption, UrlOption, client_of, duration_parser

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..api.tokens import Browsers
    from ..extender.watching import KubernetesAddress
    from ..service.service import Service
    from ..settings import ServeOptions

REPEAT_S = 1.5  # of silence, after which the present step is printed again
COMPILING = "compiling, once after an install or upgrade"


@contextmanager
def progress_lines(text: str) -> Iterator[Callable[[str], None]]:
    """Print what is being done, and again while it lasts; yields a function that changes the text."""
    ended, last, began_s = threading.Event(), [text], time.monotonic()

    def repeat() -> None:
        while not ended.wait(REPEAT_S):
            typer.echo(f"{in_one_line(last[-1])} ..., {time.monotonic() - began_s:.0f} s so far", err=True)

    typer.echo(f"{in_one_line(text)} ...", err=True)
    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield last.append
    finally:
        ended.set()
        thread.join()


def compile_for_policies(*policies: str | None) -> None:
    """Compile what decisions by these policies need, unless that is done: a live decision has no time for it.

    Policies of other packages compile in their own process, before their first decision.
    """
    from ...cluster.kernels.ahead import compile_ahead, unplayed_rehearsals
    from ...cluster.kernels.kept import can_be_kept
    from ..mirror.rehearsal import needs_no_plugin, rehearsals_of

    names = unplayed_rehearsals(
        rehearsals_of(*(name for name in policies if name is not None and needs_no_plugin(name)))
    )
    if not names or not can_be_kept():
        return
    with progress_lines(COMPILING) as show, suppress(PluginError):  # its first use reports why it cannot be compiled
        compile_ahead(names, lambda stand: show(f"{COMPILING}: {stand.done} of {stand.all} kernels"))


def serve(
    config: Annotated[Path | None, typer.Option(help="Configuration file (docs/configuration.md).")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: 4 nodes of 4 slots.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the store, the jobs and their logs; default: .longshore.")
    ] = None,
    store: Annotated[str | None, typer.Option(help="URL of the store; default: SQLite in the folder.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy that decides; default: patient alone.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to serve at; default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port; default: 8765.")] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Treat every user of this machine as the operator, without a token.")
    ] = False,
    as_root: Annotated[
        bool, typer.Option("--as-root", help="Run as root, with every job that it starts itself.")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="Format of the log: text or json.")] = (LogFormat.TEXT),
) -> None:
    """Run a scheduler with its API, by default at http://127.0.0.1:8765. Options override the configuration file."""
    from ..settings import ServeOptions, read_settings

    if log_format is LogFormat.JSON:
        log_as_json()
    add_repeat_filters()
    chosen = ServeOptions() if config is None else read_settings(config)
    given = {"cluster": cluster, "folder": folder, "store": store, "host": host, "port": port}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    changes |= {name: True for name, is_set in (("open", open_), ("as_root", as_root)) if is_set}
    if policy is not None:
        changes["policy"] = chosen.settings.policy.model_copy(update={"name": policy})
    run_service(chosen._replace(settings=chosen.settings.model_copy(update=changes)))


_FROM_KERNEL = 0x80  # SI_KERNEL: of a terminal, which has sent it to the child, too
_OWN = {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP, signal.SIGKILL, signal.SIGSTOP}


def fork_if_first_process() -> None:
    """Go on in a child if this process is the first of its PID namespace; it passes on signals, and ends as that does.

    Supervisors of attempts outlive the scheduler, so their parent is the first process, which has to reap them.

    Call it before there is any thread.

    Raises:
        OSError: If there can be no further process.
    """
    if os.getpid() != 1:
        return
    signals = signal.valid_signals() - _OWN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*signals, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    status = 1
    try:
        status = _reap_until_exit(child, signals)
    finally:
        os._exit(status)  # What this process has loaded is the child's to end.


def _reap_until_exit(child: int, signals: Set[int]) -> int:
    """Pass signals on and reap all children, until the main child has ended; return its status as a shell does."""
    while True:
        received = signal.sigwaitinfo({*signals, signal.SIGCHLD})
        if received.si_signo != signal.SIGCHLD:
            if received.si_code != _FROM_KERNEL:
                os.kill(child, received.si_signo)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code


def run_service(chosen: "ServeOptions") -> None:
    """Serve until a signal arrives.

    1. Listen at the address, before anything is written: it may be taken.
    2. Open the store and the backend (`Service`).
    3. Compile and load the policy.
    4. Link the first token for the command line of this user.
    5. Answer requests, with the scheduler's loop beside them, until a signal.

    Raises:
        LongshoreError: If a setting cannot be used.
    """
    check_present_folder()
    fork_if_first_process()
    from ..serve.app import create_app
    from ..service.service import Service

    settings = chosen.settings
    if os.geteuid() == 0 and not settings.as_root:
        raise InputError(
            "serve would run as root, and so would every job that it starts on this machine",
            "start it as another user, or with --as-root",
        )
    with _listening_socket(settings.host, settings.port) as listener:
        service = Service(chosen)
        try:
            policy, fallback = settings.policy.name, settings.policy.fallback
            compile_for_policies(fallback, policy)
            with progress_lines(f"loading {policy or fallback}"):
                service.lead()
        except LongshoreError:
            service.close()
            raise
        if service.first_token is not None:
            link_token(settings.folder / FILE, settings.port)
        app = create_app(service)
        _print_addresses(service, app.state.browsers)
        _answer_requests(service, app, listener)


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be served at: {(error.strerror or str(error)).partition(' (')[0]}",
            "is a scheduler running? else choose --port",
        ) from error


def _print_addresses(service: "Service", browsers: "Browsers") -> None:
    from ..api.tokens import link_path

    settings, kind = service.settings, "slots" if service.slots else "GPUs"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    gpus, nodes = service.layout.gpus, len(service.layout.nodes)
    typer.echo(f"Longshore serves {gpus} {kind} on {nodes} nodes at http://{host}:{settings.port}")
    if service.first_token is not None and sys.stdout.isatty():  # a log may be read by others
        path = link_path(browsers.code_for(service.first_token, service.now_s()))
        typer.echo(f"Dashboard, by a one-time link: http://{host}:{settings.port}{path}")
    if service.is_open:
        typer.echo("It is open: every user of this machine has all rights.")
    if service.slots:
        typer.echo("Its slots behave like GPUs without hardware. Ctrl-C stops the scheduler; jobs continue.")


def _answer_requests(service: "Service", app: "FastAPI", listener: socket.socket) -> None:
    from ..serve.server import ApiServer, raise_file_limit

    # Objects loaded by now stay: a garbage collection over them would take 100 ms during an answer.
    gc.collect()
    gc.freeze()
    ApiServer(app, service, raise_file_limit(), log_level="warning").run(sockets=[listener])


DEFAULT_PORT = 8888
LOADED_S = 300.0  # far more than a policy takes to be loaded and compiled
IN_CLUSTER = "in-cluster"


def extender(
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file with the nodes by name; default: learned from requests.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy that ranks; default: the heuristic alone.")] = None,
    fallback: Annotated[str, typer.Option(help="Heuristic that ranks when the policy does not answer.")] = "eft-hazard",
    api: Annotated[
        str | None,
        typer.Option(help="Kubernetes API to watch pods and nodes: in-cluster, or the URL of `kubectl proxy`."),
    ] = None,
    deadline: Annotated[
        float, typer.Option(parser=duration_parser("1ms", "60s"), metavar=DURATION, help="Time for one answer.")
    ] = 1.0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on the loopback interface.")] = DEFAULT_PORT,
) -> None:
    """Rank nodes for kube-scheduler, as its HTTP extender at http://127.0.0.1:8888."""
    import uvicorn

    from ...agents.registry import find_policy
    from ...cluster.presets.cluster_file import read_cluster
    from ..extender.app import create_app
    from ..extender.inventory import Inventory
    from ..extender.ranking import Ranker
    from ..extender.watching import ObjectWatch
    from ..placement.placer import Placer

    address = None if api is None else _kubernetes_address(api)
    inventory = Inventory(None if cluster is None else read_cluster(cluster))
    deadline_s = deadline
    ranker = Ranker(inventory, Placer(find_policy(fallback), policy, deadline_s / 2.0), deadline_s)
    compile_for_policies(fallback, policy)
    with progress_lines(f"loading {policy or fallback}"):
        ranker.warm_up(LOADED_S)
    # Objects loaded by now stay: a garbage collection over them would take 100 ms during an answer.
    gc.collect()
    gc.freeze()
    watch = None if address is None else ObjectWatch(address, ranker)
    typer.echo(f"Longshore ranks nodes at http://127.0.0.1:{port}; Ctrl-C stops it")
    uvicorn.run(create_app(ranker, watch), host="127.0.0.1", port=port, log_level="warning")


def _kubernetes_address(api: str) -> "KubernetesAddress":
    from ..extender.watching import ACCOUNT, KubernetesAddress

    if api.startswith(("http://", "https://")):
        return KubernetesAddress(api)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if api != IN_CLUSTER or host is None:
        problem = f"{api!r} is no address" if api != IN_CLUSTER else "this is no pod of a Kubernetes cluster"
        raise InputError(problem, "start `kubectl proxy` and write --api http://127.0.0.1:8001", field="--api")
    return KubernetesAddress(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", ACCOUNT)


def check(
    file: Annotated[Path | None, typer.Argument(help="Configuration file; default: the default settings.")] = None,
) -> None:
    """List all problems of a configuration, its cluster file and its policy; exit status 2 if there are any."""
    from ..serve.config_check import check as checked
    from ..serve.config_check import summary

    found = checked(file)
    for problem in found.problems:
        typer.echo(f"longshore: {in_one_line(str(problem))}", err=True)
    if found.problems:
        raise typer.Exit(2)
    for line in summary(found):
        typer.echo(line)


def dashboard(url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Print a link that opens the dashboard in one browser, once and within an hour."""
    typer.echo(f"{url.rstrip('/')}{client_of(url, ca).browser_path()}")
