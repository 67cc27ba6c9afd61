"""`longshore preflight`. Heavy modules are imported when it runs."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...cluster.files.errors import InputError
from ...cluster.files.input_problems import name_advice, shortened
from ...cluster.files.output_file import check_outputs, make_folder
from .options import TableColumn, print_json, print_table
from .store import FolderOption

if TYPE_CHECKING:
    from ...cluster.model.placement import Placement
    from ...preflight.check import CheckedJob, CheckOutcome, RoundReport
    from ...preflight.context import NodeSetup
    from ...preflight.warm import LocalNode
    from ...preflight.wiring import Blueprint

MAX_LOCAL_NODES = 64  # each is a process of this machine
FINDING_COLUMNS = (
    TableColumn("node"), TableColumn("device"), TableColumn("check"), TableColumn("outcome"),
    TableColumn("got", gives=True), TableColumn("wanted", gives=True), TableColumn("do", gives=True),
)  # fmt: skip


def preflight(
    nodes: Annotated[str | None, typer.Option(help="Names of nodes, separated by commas; default: all.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; default: the folder's, or this machine.")] = None,
    folder: FolderOption = None,
    level: Annotated[int, typer.Option(min=0, max=3, help="0 state, 1 seconds, 2 minutes, 3 half an hour.")] = 1,
    dtype: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="Type in which jobs compute.")] = "fp32",
    sample: Annotated[
        str | None, typer.Option(help="Program of two training steps, as in a job file; default: a built-in one.")
    ] = None,
    sample_limit: Annotated[float, typer.Option(min=1.0, max=600.0, help="Seconds for the sample on a node.")] = 60.0,
    link_bytes_per_s: Annotated[
        float, typer.Option(min=0.0, help="Promised bandwidth between nodes: 0.8 of it passes. 0: only measure.")
    ] = 0.0,
    wiring: Annotated[Path | None, typer.Option(help="File of expected wiring.")] = None,
    learn_wiring: Annotated[Path | None, typer.Option(help="Write the wiring found to this file.")] = None,
    port_facts: Annotated[
        Path | None, typer.Option(help="File with transceivers and neighbours, by a tool of yours.")
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="The nodes have GPUs: a driver that does not answer is a failure.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with the fields of docs/preflight.md.")] = False,
) -> None:
    """Check nodes of this machine, as before a job starts on them; exit status 1 if one is not fit."""
    from ...preflight.check import CheckedJob
    from ...preflight.context import NodeSetup
    from ...preflight.rounds import run_round as check_all
    from ...preflight.wiring import Blueprint, read_blueprint, read_port_facts

    check_outputs({"--learn-wiring": learn_wiring}, {"--cluster": cluster, "--port-facts": port_facts})
    folder = folder or Path(".longshore")
    home, gpus = folder / "preflight", _count_driver_gpus()
    if wiring is not None:
        read_blueprint(wiring)
    read_port_facts(port_facts)  # before nodes do
    known_wiring = Blueprint()
    if learn_wiring is not None and learn_wiring.exists():
        known_wiring = read_blueprint(learn_wiring)
    program = _split_command(sample) if sample else ()
    placement = _placement_on(nodes, cluster, folder, gpus)
    make_folder(home, "--folder")
    slots = not real and not gpus
    if slots:
        typer.echo("no GPU found: checks of GPUs are skipped; with --real they fail", err=True)
    places = [
        NodeSetup(
            share.node,
            home.absolute(),
            slots,
            dtype,
            wiring=_absolute_or_none(wiring),
            port_facts=_absolute_or_none(port_facts),
        )
        for share in placement
    ]
    workload = CheckedJob(
        dtype=dtype, link_bytes_per_s=link_bytes_per_s, sample_limit_s=sample_limit,
        sample=program, sample_folder=str(Path.cwd()) if sample else "",
    )  # fmt: skip
    with _node_processes(places) as warm:
        if learn_wiring is not None:
            _write_wiring(learn_wiring, known_wiring, placement, workload, warm)
            return
        report = check_all(placement, workload, warm, level=level, progress=None if json else _print_outcome)
    print_json(report.as_json()) if json else _print_report(report)
    raise typer.Exit(0 if report.passed else 1)


def _split_command(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"it cannot be split into words: {error}", "close its quotes", field="--sample") from error


def _placement_on(nodes: str | None, cluster: Path | None, folder: Path, gpus: int) -> "Placement":
    """Return all GPUs of the named nodes; without a cluster file, those of this machine if it has any.

    Raises:
        InputError: If there are no such nodes.
    """
    from ...cluster.files.paths import exists
    from ...cluster.model.placement import Share
    from ...cluster.presets.cluster_file import read_cluster
    from ..service.own_cluster import default_cluster
    from ..service.service import layout_of
    from ..settings import default_cluster_file

    if cluster is None and gpus and not exists(default_cluster_file(folder)):
        known = {os.uname().nodename: gpus}
    else:
        if cluster is None:
            make_folder(folder, "--folder")
        known = layout_of(read_cluster(cluster or default_cluster(folder))).nodes
    chosen = list(known) if nodes is None else [name.strip() for name in nodes.split(",")]
    for name, times in Counter(chosen).items():
        if name not in known:
            raise InputError(f"there is no node {shortened(name)}", name_advice(name, known), field="--nodes")
        if times > 1:
            raise InputError(f"{shortened(name)} is named {times} times", "name each once", field="--nodes")
    if len(chosen) > MAX_LOCAL_NODES:
        fix = "name some of them; each is a process of this machine"
        raise InputError(f"these are {len(chosen)} nodes; at most {MAX_LOCAL_NODES} are possible", fix, field="--nodes")
    return tuple(Share(name, tuple(range(known[name]))) for name in chosen)


def _count_driver_gpus() -> int:
    """Return the number of GPUs that the driver of this machine reports."""
    from ...cluster.files.errors import BackendError
    from ...preflight.readers import GpuLostError, open_nvml

    try:
        return open_nvml().count()
    except (BackendError, GpuLostError):
        return 0


def _absolute_or_none(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


@contextmanager
def _node_processes(places: "Sequence[NodeSetup]") -> "Iterator[dict[str, LocalNode]]":
    """Yield a process for each node; end them all."""
    from ...preflight.warm import LocalNode

    count = "1 process" if len(places) == 1 else f"{len(places)} processes"
    typer.echo(f"starting {count} with PyTorch, which takes some seconds ...", err=True)
    started = [LocalNode(place) for place in places]
    try:
        yield {node.name: node for node in started}
    finally:
        for node in started:
            node.close()


def _write_wiring(
    path: Path, before: "Blueprint", placement: "Placement", workload: "CheckedJob", nodes: "dict[str, LocalNode]"
) -> None:
    """Write the wiring found, and print what differs from before."""
    from ...preflight.check import find_check
    from ...preflight.rounds import run_one_check
    from ...preflight.wiring import learned_blueprint, node_plan_of, write_blueprint

    found = run_one_check(find_check("wiring.seen"), placement, workload, nodes)
    findings = {node: [finding for _, finding, _ in results] for node, results in found.items()}
    for node, of_node in findings.items():
        if bad := [finding for finding in of_node if finding.outcome in ("fail", "incomplete")]:
            raise InputError(f"the wiring of {node} is unknown: {bad[0].got or bad[0].reason}", bad[0].action)
    blueprint, changes = learned_blueprint(before, {node: node_plan_of(of_node) for node, of_node in findings.items()})
    write_blueprint(path, blueprint)
    for change in changes:
        typer.echo(change)
    typer.echo(f"{path}: nodes: {len(findings)}, parts added, removed or changed: {len(changes)}")


def _print_outcome(node: str, check: str, outcome: "CheckOutcome") -> None:
    """Print a check that did not pass, as soon as that is known."""
    if outcome not in ("pass", "skipped"):
        typer.echo(f"{node}: {check}: {outcome}", err=True)


def _print_report(report: "RoundReport") -> None:
    rows = [*report.bad_results, *report.warnings]
    if rows:
        print_table(
            FINDING_COLUMNS,
            (
                [row.node, row.device, row.check, row.outcome, row.got or row.reason, row.wanted, row.action]
                for row in rows
            ),
        )
    counts = Counter(str(result.outcome) for result in report.results)
    words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    fit = len(report.nodes) - len(report.bad_nodes)
    typer.echo(f"{fit} of {len(report.nodes)} nodes are fit; checks: {words}; {report.seconds:.2f} s")
