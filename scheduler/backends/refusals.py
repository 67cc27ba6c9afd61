"""What every backend refuses of what it is asked to start."""

import os
from collections.abc import Mapping

from ..model.placement import Placement, Share
from .protocol import Attempt, CannotHonourError, RefusedError


def refuse_placement(attempt: Attempt, placement: Placement, nodes: Mapping[str, int]) -> None:
    """Refuse GPUs that are not there.

    Args:
        attempt: Whose they are to be.
        placement: The GPUs.
        nodes: GPUs of each node.

    Raises:
        CannotHonourError: If there are no such GPUs, or one is named twice.
    """
    for share in placement:
        _refuse_share(share, nodes)
    if not placement or len({share.node for share in placement}) != len(placement):
        raise CannotHonourError(f"{attempt.name}: a placement names each of its nodes once, not {placement}")


def refuse_texts(attempt: Attempt) -> None:
    """Refuse what cannot be passed to a program.

    Raises:
        RefusedError: If another backend holds it, the command is empty, or a text cannot be an argument or variable.
    """
    if attempt.is_held:
        raise RefusedError(f"{attempt.name}: the job came by another backend, which holds it")
    if not attempt.command:
        raise RefusedError(f"{attempt.name}: its command is empty")
    for text in (*attempt.command, attempt.folder, *attempt.environment, *attempt.environment.values()):
        try:
            passes = b"\0" not in os.fsencode(text)
        except UnicodeEncodeError:
            passes = False
        if not passes:
            raise RefusedError(f"{attempt.name}: {text!r} cannot be passed to a program")
    for key in attempt.environment:
        if not key or "=" in key:
            raise RefusedError(f"{attempt.name}: {key!r} cannot be the name of an environment variable")


def _refuse_share(share: Share, nodes: Mapping[str, int]) -> None:
    if share.node not in nodes:
        raise CannotHonourError(f"no node {share.node!r}; there are {', '.join(nodes)}")
    ascending = list(share.gpus) == sorted(set(share.gpus))
    if not share.gpus or not ascending or not 0 <= share.gpus[0] <= share.gpus[-1] < nodes[share.node]:
        raise CannotHonourError(f"node {share.node} has GPUs 0 to {nodes[share.node] - 1}, asked for {share.gpus}")
