"""`longshore policies` and `longshore policies import`."""

from pathlib import Path
from typing import Annotated

import typer

from ..cluster.files.errors import InputError, PluginError
from .progress import progress

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
EXAMPLE = "Example: longshore policies import model.zip --out policy.zip"

app = typer.Typer(
    invoke_without_command=True,
    help="List the policies that can be named; `import` makes a checkpoint of a model of Stable-Baselines3.",
    epilog="Example: longshore policies",
)


@app.callback()
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


@app.command("import", epilog=EXAMPLE)
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
        from ..agents.sb3.models import Asked, read_model
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
