"""What a network saw when it decided, so that one can learn from its decisions afterwards (SPEC R9)."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..protocol import Policy


class DecisionRecord(NamedTuple):
    """The choices of one decision in their order: a single one among candidates, or one for each node or GPU picked."""

    observations: NDArray[np.float32]  # (choices, size)
    masks: NDArray[np.bool_]  # (choices, actions) True where an action was open
    log_probabilities: NDArray[np.float32]  # (choices, actions) of the network's softmax; -inf where it was closed
    actions: NDArray[np.int32]  # (choices,) that were taken


@runtime_checkable
class Observing(Policy, Protocol):
    """A policy that tells what it saw. Heuristics need not."""

    def last_decision(self) -> DecisionRecord:
        """Return its record of the last `place`, as a copy."""
        ...


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log-probabilities, shape (choices, actions); logits of -inf stay so."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probabilities


def joined(choices: list[DecisionRecord]) -> DecisionRecord:
    """Return several choices of one decision as one record.

    Raises:
        ValueError: If there is none.
    """
    if not choices:
        raise ValueError("the policy has not decided yet")
    return DecisionRecord(*(np.concatenate(parts) for parts in zip(*choices, strict=True)))
