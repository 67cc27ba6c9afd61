"""The command that serves the extender. Heavy modules are imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PORT = 8888


def extender(
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file with the nodes by name; learned from requests if left out.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy that ranks; the heuristic alone if left out.")] = None,
    fallback: Annotated[str, typer.Option(help="Heuristic that ranks when the policy does not.")] = "eft-hazard",
    deadline_ms: Annotated[float, typer.Option(min=1.0, max=60_000.0, help="Time for one answer.")] = 500.0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on the loopback interface.")] = DEFAULT_PORT,
) -> None:
    """Rank nodes for kube-scheduler, as its HTTP extender on http://127.0.0.1:8888."""
    import uvicorn

    from ...agents.registry import find_policy
    from ...cluster.cluster_file import read_cluster
    from ..deciding import Deciding
    from .app import create_app
    from .inventory import Inventory
    from .ranking import Ranker

    inventory = Inventory(None if cluster is None else read_cluster(cluster))
    deadline_s = deadline_ms / 1000.0
    ranker = Ranker(inventory, Deciding(find_policy(fallback), policy, deadline_s / 2.0), deadline_s)
    typer.echo(f"Longshore ranks nodes at http://127.0.0.1:{port}; Ctrl-C stops it")
    uvicorn.run(create_app(ranker), host="127.0.0.1", port=port, log_level="warning")
