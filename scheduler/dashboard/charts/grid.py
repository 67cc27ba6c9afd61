"""The GPUs of a node as elements. Written here and not as a template, as a large cluster has thousands of them."""

from functools import cache
from html import escape

from markupsafe import Markup

from ..cluster_view import LETTERS, STYLES, Block, NodeView


@cache
def cells(letter: str, gpus: int) -> Markup:
    """Return so many GPUs with a letter each."""
    return Markup("<i>{}</i>").format(letter) * gpus


def blocks(node: NodeView, *, named: bool) -> Markup:
    """Return the GPUs of a node; those that a job holds lead to it.

    Args:
        node: The node.
        named: Whether the name of the job stands on them.
    """
    name = escape(node.name)
    return Markup("".join(_block(name, block, named=named) for block in node.blocks))  # all parts are escaped


def _block(node: str, it: Block, *, named: bool) -> str:
    inside = cells(LETTERS[it.state], it.gpus)
    style = f"block {STYLES[it.state]} s{it.gpus}"
    if not it.job_id:
        return f'<span class="{style}" title="{escape(it.said)}">{inside}</span>'
    of = f'<span class="of">{escape(it.job)}</span>' if named else ""
    address, said = escape(it.job_id), escape(it.said)
    return f'<a id="g{node}-{it.first}" class="{style}" href="/jobs/{address}" aria-label="{said}">{inside}{of}</a>'
