"""The first page: every GPU of the cluster, and the jobs that have not ended."""

from fastapi import APIRouter, Response

from ...service.service import Service
from ...store.rows.events import last_seq
from ..charts.use_chart import use_chart
from ..cluster_view import LETTERS, cluster_view
from ..rendering import draw, nothing_new
from .page import OPERATORS, Page, Seen


def add_cluster(router: APIRouter, service: Service) -> None:
    """Add the page."""

    def page(template: str, seen: str) -> Response:
        with service.store.read() as tx:
            now = f"{last_seq(tx)}-{service.leads():d}-{service.usage.taken}"
            if now == seen:
                return nothing_new()
            view = cluster_view(tx, service.layout, service.node_types)
        use = use_chart(service.usage.samples())
        return draw(service, "cluster", template, view=view, use=use, seen=now, letters=LETTERS)

    @router.get("/")
    def cluster() -> Response:
        return page("cluster.html", "")

    @router.get("/parts/cluster")
    def cluster_part(seen: Seen = "") -> Response:
        return page("cluster_part.html", seen)


PAGE = Page("cluster", "/", "Cluster", 10, OPERATORS, add_cluster)
