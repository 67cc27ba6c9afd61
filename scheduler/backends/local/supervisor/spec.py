"""What a supervisor is to run. It uses this itself: standard library only."""

import json
from typing import NamedTuple

ALL_ON_NODE, OWN = "node", "rank"  # GPUs that a rank sees


class Rank(NamedTuple):
    """Where one rank runs."""

    node: str
    gpu: int  # index on the node


class Part(NamedTuple):
    """The ranks of an attempt that one supervisor runs, and where they meet those of others."""

    visible: dict[int, str]  # what CUDA_VISIBLE_DEVICES calls the GPU of each rank
    address: str
    port: int


class Spec(NamedTuple):
    """An attempt, ready to be run."""

    attempt: str
    job: str
    number: int
    command: tuple[str, ...]
    folder: str  # absolute
    environment: dict[str, str]
    grace_s: float
    limit_s: float | None
    ranks: tuple[Rank, ...]
    seats: int = 0  # of its ring; 0 for ranks that stop together
    backups: int = 0  # slow members of it in whose place others may compute
    visible_gpus: str = ALL_ON_NODE  # that a rank sees: those of all ranks on its node, or its own


def encode(spec: Spec) -> bytes:
    """Return the spec as a file holds it; equal specs give equal bytes."""
    fields = spec._asdict()
    for name, default in Spec._field_defaults.items():
        if fields[name] == default:
            del fields[name]  # as before there was such a thing, so that attempts of older versions are recognised
    return json.dumps(fields, sort_keys=True).encode()


def decode(content: bytes) -> Spec:
    """Return the spec that `encode` wrote.

    Raises:
        ValueError: If it makes no sense.
    """
    try:
        fields = json.loads(content)
        ranks = tuple(Rank(node, gpu) for node, gpu, *_ in fields.pop("ranks"))  # older versions wrote more of each
        return Spec(command=tuple(fields.pop("command")), ranks=ranks, **fields)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not what an attempt is: {type(error).__name__}: {error}") from error
