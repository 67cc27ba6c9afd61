"""`longshore policies`."""

from pathlib import Path

import typer

from ..cluster.files.errors import PluginError

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


def policies() -> None:
    """List the policies that can be named."""
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
