"""All commands that need no scheduler, and the small ones: `compile`, `policies`, `simulate`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..cluster.files.errors import InputError, PluginError
from ..cluster.files.signals import unwound_by_signals
from ..scheduler.commands.options import POLICIES
from . import planning, traces
from .evaluating import evaluate
from .options import (
    AgeingOption,
    ArrivalsOption,
    EstimatesOption,
    FaultsOption,
    LoadOption,
    MaxGpusOption,
    OracleOption,
    OrderOption,
    Plans,
    PlansOption,
    ProfileOption,
    SeedOption,
    SigmaOption,
    TraceOption,
    TurnsOption,
    WaitingOption,
    regime_of,
)
from .progress import compile_all, compile_first, console, progress
from .training import train, tune

if TYPE_CHECKING:
    from ..cluster.files.yaml_file import YamlFile

SERVE = "serve"
GROUP_NAMES = ("heuristics", "candidates", "networks", "environments", "training", SERVE)  # all that there are


def compile_(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help=f"{', '.join(GROUP_NAMES)}; all if left out.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration of `longshore serve`: compile what it names, and for no other.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core if left out.")] = None,
) -> None:
    """Compile beforehand what other commands would compile at their first use, such as in an image for containers.

    heuristics: for evaluate and simulate. candidates, networks: for checkpoints, and rollouts. environments,
    training: with those, for train and tune. serve: for a scheduler and its policy.

    What was compiled before is left alone, so that an interrupted command goes on where it stopped. Code is kept in
    $XDG_CACHE_HOME/longshore (~/.cache/longshore if that is not set), which may be read-only afterwards.
    """
    asked = dict.fromkeys(groups or ([SERVE] if config else GROUP_NAMES))
    if wrong := [name for name in asked if name not in GROUP_NAMES]:
        raise typer.BadParameter(f"there is no group {wrong[0]!r}; take some of {', '.join(GROUP_NAMES)}")
    if config and SERVE not in asked:
        raise typer.BadParameter(f"--config goes with the group {SERVE}")
    from ..cluster.kernels.ahead import missing
    from ..cluster.kernels.kept import can_be_kept, folder
    from ..scheduler.mirror.rehearsal import rehearsals_of
    from ..scheduler.settings import SchedulerSettings, read_settings
    from ..training.run import REHEARSAL_GROUPS

    policy = (read_settings(config).settings if config else SchedulerSettings()).policy
    serve = rehearsals_of(*filter(None, (policy.fallback, policy.name)))
    names = [each for name in asked for each in (serve if name == SERVE else REHEARSAL_GROUPS[name])]
    if missing(names) and not can_be_kept():
        raise InputError(f"compiled code cannot be kept in {folder()}", "set XDG_CACHE_HOME to a folder to write to")
    said = "compiled" if compile_all(names, jobs) else "was compiled before"
    typer.echo(f"{', '.join(asked)}: {said}, in {folder()}")


CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
EXAMPLE = "Example: longshore policies import model.zip --out policy.zip"

policies_app = typer.Typer(
    invoke_without_command=True,
    help="List the policies that can be named; `import` makes a checkpoint of a model of Stable-Baselines3.",
    epilog="Example: longshore policies",
)


@policies_app.callback()
def policies(context: typer.Context) -> None:
    """List the policies that can be named; `import` makes a checkpoint of a model of Stable-Baselines3."""
    if context.invoked_subcommand is not None:
        return
    from ..agents.registry import find_policy, policy_names

    for name in policy_names():
        try:
            found = find_policy(name)
        except PluginError as error:
            typer.echo(f"{name:16s} cannot be used: {error}")
        else:
            typer.echo(f"{name:16s} {found.about}{' (only with --waiting)' if found.waits else ''}")
    typer.echo("\nA learned policy is named by the path of its checkpoint (NAME.zip, as `longshore train` writes).")
    typer.echo("rollout:NAME tries the alternatives of any of them out in imagined futures before it decides;")
    typer.echo("rollout:NAME@20ms takes no more than so long for it; rollout:NAME.zip@h16 cuts futures off after so")
    typer.echo("many started jobs, where the checkpoint's value tells what is still to come; @20ms,h16 is both.")
    for path in sorted(CHECKPOINTS.glob("*.zip")):
        typer.echo(f"Shipped: {path}")


@policies_app.command("import", epilog=EXAMPLE)
def import_model(
    model: Annotated[Path, typer.Argument(help="What `model.save` of PPO, A2C or MaskablePPO with MlpPolicy wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Checkpoint to write, NAME.zip; MODEL-policy.zip beside the model if left out.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file that it was trained on, where the model does not say it.")
    ] = None,
    observation: Annotated[
        str | None, typer.Option(help="full, patent or patent-literal, where the model does not say it.")
    ] = None,
    waiting: Annotated[
        bool | None,
        typer.Option("--waiting/--no-waiting", help="Whether its actions have waiting, where only that is open."),
    ] = None,
) -> None:
    """Make a checkpoint of a model that Stable-Baselines3 or sb3-contrib trained on an environment of Longshore.

    Nothing in the file is executed: weights are read as numbers, and what is pickled is left alone. Its spaces are
    compared with those of the environment, which models that were trained in this version name themselves.
    """
    with progress("reading the model"):
        from ..agents.learned.checkpoint import save_policy
        from ..agents.sb3 import Asked, read_model
        from ..cluster.files.output_file import check_outputs

        _check_observation(observation)
        target = out or model.with_name(f"{model.stem}-policy.zip")
        if target.suffix != ".zip":
            raise InputError(f"{target} is no name of a checkpoint", "write one such as policy.zip", field="--out")
        if target.exists():
            raise InputError(f"{target} is there already", "give another --out, or remove it", field="--out")
        check_outputs({"--out": target}, {"MODEL": model})
        asked = Asked(observation, None if cluster is None else _node_gpus(cluster), waiting)
        schema, network = read_model(model, asked)
        save_policy(target, schema, network)
    waits = "with waiting" if schema.waiting else "no waiting"
    where = f"{schema.gpus} GPUs" if schema.counts_gpus else f"{schema.gpus} GPUs on {len(schema.node_gpus)} nodes"
    typer.echo(f"{target}: {schema.algorithm}, {schema.action} actions, {waits}, {schema.observation}, {where}")
    typer.echo(f"It decides by observations as they are. Try it: longshore evaluate --policy {target}")


def _check_observation(name: str | None) -> None:
    """Refuse an observation that there is not."""
    from ..cluster.files.input_problems import nearest
    from ..envs.batch import OBSERVATIONS

    if name is not None and name not in OBSERVATIONS:
        raise InputError(f"there is no observation {name!r}", nearest(name, OBSERVATIONS), field="--observation")


def _node_gpus(cluster: Path) -> tuple[int, ...]:
    import numpy as np

    from ..cluster.presets.cluster_file import read_cluster

    return tuple(int(gpus) for gpus in np.diff(read_cluster(cluster).cluster.first_gpu))


def simulate(
    cluster: Annotated[Path, typer.Option(help="Cluster file (YAML; see examples/).")],
    policy: Annotated[
        str, typer.Option(help="A name from `longshore policies`, or a checkpoint (NAME.zip), or rollout:NAME.")
    ] = "pack",
    trace: TraceOption = None,
    faults: FaultsOption = None,
    order: OrderOption = "fifo",
    ageing: AgeingOption = None,
    waiting: WaitingOption = False,
    oracle: OracleOption = False,
    turns: TurnsOption = True,
    estimates: EstimatesOption = None,
    sigma: SigmaOption = 0.5,
    profile: ProfileOption = None,
    arrivals: ArrivalsOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=10**6, help="Only the first so many jobs; 200 without a trace.")
    ] = None,
    load: LoadOption = None,
    max_gpus: MaxGpusOption = None,
    plans: PlansOption = Plans.fixed,
    seed: SeedOption = 0,
    events: Annotated[Path | None, typer.Option(help="Write the schedule here (JSON lines).")] = None,
    jobs_out: Annotated[Path | None, typer.Option(help="Write the jobs here (JSON).")] = None,
    cluster_out: Annotated[Path | None, typer.Option(help="Write the cluster here (JSON).")] = None,
) -> None:
    """Run one workload under one policy, and write the schedule for others to check.

    Without a trace, jobs are generated like those of a Philly cluster at a load of 0.8.
    """
    with progress("starting"):
        from ..eval.setting import JobsRequest
        from ..eval.simulate import SimulationRequest, simulate_request

    request = SimulationRequest(
        cluster=cluster, policy=policy, trace=trace, faults=faults,
        regime=regime_of(order, ageing, waiting=waiting, oracle=oracle, turns=turns),
        estimates=estimates.value if estimates else None, sigma=sigma,
        drawn=JobsRequest(profile, arrivals.value if arrivals else None),
        jobs=jobs, load=load, max_gpus=max_gpus, seed=seed, events=events, jobs_out=jobs_out, cluster_out=cluster_out,
        plans=plans.value,
    )  # fmt: skip
    simulate_request(request, console(), progress, compile_first)


COMMANDS: dict[Callable[..., None], str] = {
    simulate: "longshore simulate --cluster examples/hetero64.yaml --policy patient --waiting --order easy",
    evaluate: "longshore evaluate --trace jobs.csv --policy checkpoints/hetero64.zip --report report.html",
    train: "longshore train --preset hetero64 --steps 2e6 --seed 0",
    tune: "longshore tune --preset hetero64 --trials 20 --jobs 2",
    compile_: "longshore compile heuristics serve",
    planning.plan: "longshore plan examples/plan/llama7b.py --deadline 24h --tokens 1e9 --cluster examples/small.yaml",
}  # each with an example


def add_commands(app: typer.Typer) -> None:
    """Add the commands that need no scheduler to the command line."""
    for command, example in COMMANDS.items():
        # SIGTERM, by which jobs are held and cancelled, ends it as Ctrl-C does: what that keeps is kept.
        name, unwound = command.__name__.rstrip("_"), unwound_by_signals()(command)
        app.command(name, rich_help_panel=POLICIES, epilog=f"Example: {example}")(unwound)
    app.add_typer(policies_app, name="policies", rich_help_panel=POLICIES)
    app.add_typer(planning.app, name="planner", rich_help_panel=POLICIES)
    app.add_typer(traces.app, name="trace", rich_help_panel=POLICIES)


def plan_job(
    file: "YamlFile",
    data: Mapping[str, Any],
    folder: Path,
    cluster: Callable[[], Mapping[str, Any]],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return the fields of a job with a plan in place of the wish for one; see `planned_jobs.plan_job`."""
    with progress("planning the job"):
        from .planned_jobs import plan_job as plan

        return plan(file, data, folder, cluster, tell)
