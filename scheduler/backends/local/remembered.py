"""Attempts by what is in their folders, whether the scheduler knows them or not."""

import logging

from ...job_errors import words_of
from ..protocol import Attempt, Placement, Share
from .durable import is_there, read_whole
from .folders import Folders, told_as_backend_error
from .spec import Spec, decode
from .supervision import SPEC_BYTES

log = logging.getLogger(__name__)

SPEC = "spec.json"


def remembered_in(folders: Folders) -> dict[str, tuple[Attempt, Placement]]:
    """Return the attempts that were launched and not forgotten, with their GPUs, by name.

    One whose file makes no sense is passed over, and the log has its name: the others must not wait for it for ever.

    Raises:
        BackendError: If one of them cannot be read.
    """
    found: dict[str, tuple[Attempt, Placement]] = {}
    for name in folders.names_with(SPEC):
        with told_as_backend_error(name), folders.open(name) as folder:
            if folder is None or not is_there(folder, SPEC):  # forgotten just now
                continue
            content = read_whole(folder, SPEC, SPEC_BYTES)
            try:
                spec = decode(content)
                found[name] = (_attempt(spec), _placement(spec))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                log.error("%s: its %s cannot be read, and it is passed over: %s", name, SPEC, words_of(error))
    return found


def _attempt(spec: Spec) -> Attempt:
    limit_s = float("inf") if spec.limit_s is None else spec.limit_s
    return Attempt(
        spec.attempt, spec.job, spec.number, spec.command, spec.folder, spec.environment, spec.grace_s, limit_s
    )  # fmt: skip


def _placement(spec: Spec) -> Placement:
    nodes: dict[str, list[int]] = {}
    for rank in spec.ranks:
        nodes.setdefault(rank.node, []).append(rank.gpu)
    return tuple(Share(node, tuple(sorted(gpus))) for node, gpus in nodes.items())
