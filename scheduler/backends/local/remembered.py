"""Attempts by what is in their folders, whether the scheduler knows them or not."""

from ..protocol import Attempt, Placement, Share
from .durable import is_there, read_whole
from .folders import Folders, told_as_backend_error
from .spec import Spec, decode
from .supervision import SPEC_BYTES


def remembered_in(folders: Folders) -> dict[str, tuple[Attempt, Placement]]:
    """Return the attempts that were launched and not forgotten, with their GPUs, by name.

    Raises:
        BackendError: If one of them cannot be read.
    """
    found: dict[str, tuple[Attempt, Placement]] = {}
    for name in folders.names():
        with told_as_backend_error(name), folders.open(name) as folder:
            if folder is not None and is_there(folder, "spec.json"):
                content = read_whole(folder, "spec.json", SPEC_BYTES)
                try:
                    spec = decode(content)
                except (ValueError, TypeError, KeyError) as error:
                    raise OSError(f"spec.json cannot be read: {error}") from error
                found[name] = (_attempt(spec), _placement(spec))
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
