"""The command that serves the extender. Heavy modules are imported when it runs."""

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....cluster.files.errors import InputError
from ..durations import DURATION, duration_between
from .getting_ready import compile_first, saying

if TYPE_CHECKING:
    from ...extender.kubernetes_api import Api

DEFAULT_PORT = 8888
LOADED_S = 300.0  # far more than a policy takes to be loaded and compiled
IN_CLUSTER = "in-cluster"


def extender(
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file with the nodes by name; learned from requests if left out.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy that ranks; the heuristic alone if left out.")] = None,
    fallback: Annotated[str, typer.Option(help="Heuristic that ranks when the policy does not.")] = "eft-hazard",
    api: Annotated[
        str | None,
        typer.Option(help="Kubernetes API that tells of pods and nodes: in-cluster, or the URL of `kubectl proxy`."),
    ] = None,
    deadline: Annotated[
        float, typer.Option(parser=duration_between("1ms", "60s"), metavar=DURATION, help="Time for one answer.")
    ] = 1.0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on the loopback interface.")] = DEFAULT_PORT,
) -> None:
    """Rank nodes for kube-scheduler, as its HTTP extender on http://127.0.0.1:8888."""
    import uvicorn

    from ....agents.registry import find_policy
    from ....cluster.presets.cluster_file import read_cluster
    from ...extender.app import create_app
    from ...extender.inventory import Inventory
    from ...extender.ranking import Ranker
    from ...extender.watching import Watch
    from ...placement.placer import Placer

    reached = None if api is None else _api(api)
    inventory = Inventory(None if cluster is None else read_cluster(cluster))
    deadline_s = deadline
    ranker = Ranker(inventory, Placer(find_policy(fallback), policy, deadline_s / 2.0), deadline_s)
    compile_first(fallback, policy)
    with saying(f"loading {policy or fallback}"):
        ranker.warm_up(LOADED_S)
    # What is loaded by now stays: looking through it for garbage takes 100 ms, in the midst of an answer.
    gc.collect()
    gc.freeze()
    watch = None if reached is None else Watch(reached, ranker)
    typer.echo(f"Longshore ranks nodes at http://127.0.0.1:{port}; Ctrl-C stops it")
    uvicorn.run(create_app(ranker, watch), host="127.0.0.1", port=port, log_level="warning")


def _api(said: str) -> "Api":
    from ...extender.kubernetes_api import ACCOUNT, Api

    if said.startswith(("http://", "https://")):
        return Api(said)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if said != IN_CLUSTER or host is None:
        problem = f"{said!r} is no address" if said != IN_CLUSTER else "this is no pod of a Kubernetes cluster"
        raise InputError(problem, "start `kubectl proxy` and write --api http://127.0.0.1:8001", field="--api")
    return Api(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", ACCOUNT)
