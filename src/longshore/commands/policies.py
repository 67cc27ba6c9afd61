"""`longshore policy list`, `longshore policy import` and `longshore compile`."""

from pathlib import Path
from typing import Annotated

import typer

from ..cluster.files.errors import InputError, PluginError
from .progress import compile_all, progress

SERVE = "serve"
GROUP_NAMES = ("heuristics", "candidates", "networks", "environments", "training", SERVE)  # all that there are


def compile_kernels(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help=f"{', '.join(GROUP_NAMES)}; default: all.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration of `longshore serve`: compile for its policies alone.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one for each core.")] = None,
) -> None:
    """Compile what other commands would compile at their first use, such as in a container image.

    heuristics: for evaluate and simulate. candidates, networks: for policy files, and rollouts. environments,
    training: with those, for train and tune. serve: for a scheduler and its policy.

    What is compiled already stays, so an interrupted command continues where it stopped. Code is kept in
    $XDG_CACHE_HOME/longshore (~/.cache/longshore if that is not set), which may be read-only afterwards.
    """
    chosen = dict.fromkeys(groups or ([SERVE] if config else GROUP_NAMES))
    if wrong := [name for name in chosen if name not in GROUP_NAMES]:
        raise typer.BadParameter(f"there is no group {wrong[0]!r}; take some of {', '.join(GROUP_NAMES)}")
    if config and SERVE not in chosen:
        raise typer.BadParameter(f"--config goes with the group {SERVE}")
    from ..cluster.kernels.ahead import unplayed_rehearsals
    from ..cluster.kernels.kept import cache_folder, can_be_kept
    from ..scheduler.mirror.rehearsal import rehearsals_of
    from ..scheduler.settings import SchedulerSettings, read_settings
    from ..training.rehearsals import REHEARSAL_GROUPS

    policy = (read_settings(config).settings if config else SchedulerSettings()).policy
    serve = rehearsals_of(*filter(None, (policy.fallback, policy.name)))
    names = [each for name in chosen for each in (serve if name == SERVE else REHEARSAL_GROUPS[name])]
    if unplayed_rehearsals(names) and not can_be_kept():
        raise InputError(
            f"compiled code cannot be kept in {cache_folder()}", "set XDG_CACHE_HOME to a folder to write to"
        )
    done = "compiled" if compile_all(names, jobs) else "already compiled"
    typer.echo(f"{', '.join(chosen)}: {done}, in {cache_folder()}")


SHIPPED_CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


def list_policies() -> None:
    """List the policies that can be named, and the shipped policy files."""
    from ..agents.registry import find_policy, policy_names

    for name in policy_names():
        try:
            found = find_policy(name)
        except PluginError as error:
            typer.echo(f"{name:16s} cannot be used: {error}")
        else:
            typer.echo(f"{name:16s} {found.about}{' (only with --waiting)' if found.waits else ''}")
    typer.echo("\nA learned policy is named by the path of its policy file (NAME.zip, as `longshore train` writes).")
    typer.echo("rollout:NAME simulates futures of the alternatives of any of them before it decides;")
    typer.echo("rollout:NAME@20ms takes at most 20 ms for that; rollout:NAME.zip@h16 ends futures after 16 started")
    typer.echo("jobs, where the policy's value estimates the rest; @20ms,h16 is both.")
    for path in sorted(SHIPPED_CHECKPOINTS.glob("*.zip")):
        typer.echo(f"Shipped: {path}")


def import_model(
    model: Annotated[Path, typer.Argument(help="What `model.save` of PPO, A2C or MaskablePPO with MlpPolicy wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Policy file to write, NAME.zip; default: MODEL-policy.zip beside the model.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file of its training, if the model does not name it.")
    ] = None,
    observation: Annotated[
        str | None, typer.Option(help="full, patent or patent-literal, if the model does not name it.")
    ] = None,
    waiting: Annotated[
        bool | None,
        typer.Option("--waiting/--no-waiting", help="Whether its actions include waiting, if only that is open."),
    ] = None,
) -> None:
    """Make a policy file of a model that Stable-Baselines3 or sb3-contrib trained on an environment of Longshore.

    Nothing in the file is executed: weights are read as numbers, and what is pickled is left alone. Its spaces are
    compared with those of the environment, which models that were trained in this version name themselves.
    """
    with progress("reading the model"):
        from ..agents.learned.checkpoint import save_policy
        from ..agents.sb3 import EnvironmentHints, import_model
        from ..cluster.files.output_file import check_outputs

        _check_observation(observation)
        target = out or model.with_name(f"{model.stem}-policy.zip")
        if target.suffix != ".zip":
            raise InputError(f"{target} is no name of a policy file", "write one such as policy.zip", field="--out")
        if target.exists():
            raise InputError(f"{target} exists already", "give another --out, or remove it", field="--out")
        check_outputs({"--out": target}, {"MODEL": model})
        hints = EnvironmentHints(observation, None if cluster is None else _node_gpus(cluster), waiting)
        schema, network = import_model(model, hints)
        save_policy(target, schema, network)
    waits = "with waiting" if schema.waiting else "no waiting"
    where = (
        f"{schema.gpus} GPUs" if schema.sees_only_gpu_count else f"{schema.gpus} GPUs on {len(schema.node_gpus)} nodes"
    )
    typer.echo(f"{target}: {schema.algorithm}, {schema.action} actions, {waits}, {schema.observation}, {where}")
    typer.echo(f"It decides by observations as they are. Try it: longshore evaluate --policy {target}")


def _check_observation(name: str | None) -> None:
    """Refuse an observation that there is not."""
    from ..cluster.files.input_problems import name_advice
    from ..envs.batch import OBSERVATIONS

    if name is not None and name not in OBSERVATIONS:
        raise InputError(f"there is no observation {name!r}", name_advice(name, OBSERVATIONS), field="--observation")


def _node_gpus(cluster: Path) -> tuple[int, ...]:
    import numpy as np

    from ..cluster.presets.cluster_file import read_cluster

    return tuple(int(gpus) for gpus in np.diff(read_cluster(cluster).cluster.first_gpu))
