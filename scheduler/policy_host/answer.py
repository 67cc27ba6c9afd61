"""What a policy's process tells the scheduler, as JSON: nothing that it sends can run code here."""

import base64
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ...agents.learned.decision_record import DecisionRecord
from ...cluster.files.errors import PluginError
from ...cluster.files.output_file import readable

Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, AfterValidator(readable)]  # JSON has no form for bytes of a path that are no UTF-8
MOST_RECORD_BYTES = 1 << 20  # of a decision; what it saw is not sent if it is more
MOST_NAME, MOST_REMARK = 200, 1000  # characters
ROUNDING = 1e-3  # by which a log-probability may be above 0


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Ready(_Message):
    """The policy is loaded and compiled."""

    kind: Literal["ready"] = "ready"
    name: Text
    waits: bool
    remark: Annotated[Text, Field(max_length=MOST_REMARK)] = ""  # how its training differs from its use here


class Refused(_Message):
    """The policy could not be loaded."""

    kind: Literal["refused"] = "refused"
    reason: Text


class Followed(_Message):
    """All that was told is taken in."""

    kind: Literal["followed"] = "followed"
    number: int  # of the message that told it


class RecordParts(_Message):
    """What a network saw and how it chose, in base64."""

    observations: str  # little-endian float32, choice by choice
    masks: str  # one byte an action, 0 or 1
    log_probabilities: str  # little-endian float32, one an action
    actions: list[int]  # one a choice


class Choice(_Message):
    """What the policy would do."""

    kind: Literal["choice"] = "choice"
    number: int  # of the question
    job: Annotated[str, Field(max_length=MOST_NAME)]  # that it starts; it may have turned to another one than was due
    gpus: list[int]  # in the order of their picks; none to wait
    rests: bool = False  # all jobs wait
    took_s: Finite = 0.0
    record: RecordParts | None = None  # if it tells


class Failed(_Message):
    """The policy raised an error."""

    kind: Literal["failed"] = "failed"
    number: int
    reason: Text


Message = Ready | Refused | Followed | Choice | Failed
_MESSAGES: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


def read_message(data: bytes) -> Message:
    """Return a message.

    Raises:
        PluginError: If it is none.
    """
    try:
        return _MESSAGES.validate_json(data)
    except (ValidationError, ValueError) as error:
        raise PluginError(f"the policy's process sent what is no answer: {str(error).splitlines()[0]}") from error


class Stored(NamedTuple):
    """What a network saw, as it is stored."""

    observation: bytes  # little-endian float32, choice by choice
    mask: bytes  # one byte an action
    log_probability: bytes  # little-endian float32, -inf where an action was closed
    actions: tuple[int, ...]  # one a choice


def parts_of(record: DecisionRecord) -> RecordParts | None:
    """Return what is sent of what a network saw, None if that is too much."""
    arrays = (record.observations.astype("<f4"), record.masks.astype("u1"), record.log_probabilities.astype("<f4"))
    if sum(array.nbytes for array in arrays) > MOST_RECORD_BYTES:
        return None
    texts = (base64.b64encode(array.tobytes()).decode() for array in arrays)
    return RecordParts(**dict(zip(RecordParts.model_fields, (*texts, record.actions.tolist()), strict=True)))


def stored_of(parts: RecordParts) -> Stored:
    """Return what is stored of what a network saw.

    Raises:
        PluginError: If its parts do not fit together, or are not finite.
    """
    try:
        texts = (parts.observations, parts.masks, parts.log_probabilities)
        observation, mask, log_probability = (base64.b64decode(text, validate=True) for text in texts)
    except ValueError as error:  # not ASCII, or no base64
        raise PluginError(f"what the policy saw is no base64: {error}") from error
    stored = Stored(observation, mask, log_probability, tuple(parts.actions))
    record = record_of(stored)
    if not np.isfinite(record.observations).all():
        raise PluginError("what the policy saw is not finite")
    closed, logs = ~record.masks, record.log_probabilities
    if not (np.isneginf(logs) == closed).all() or not (logs <= ROUNDING).all():
        raise PluginError("the policy's log-probabilities are none, or do not go with its mask")
    if closed[np.arange(record.actions.size), record.actions].any():
        raise PluginError("the policy took an action that its mask closes")
    return stored


def record_of(stored: Stored) -> DecisionRecord:
    """Return what a network saw at a stored decision.

    Raises:
        PluginError: If the parts do not fit together.
    """
    choices = len(stored.actions)
    actions = len(stored.mask) // choices if choices else 0
    size = len(stored.observation) // 4 // choices if choices else 0
    lengths = (4 * size * choices, actions * choices, 4 * actions * choices)
    found = (len(stored.observation), len(stored.mask), len(stored.log_probability))
    if not choices or lengths != found or not all(0 <= action < actions for action in stored.actions):
        raise PluginError(f"what the policy saw has {found} bytes, which do not go with {choices} choices")
    return DecisionRecord(
        _floats(stored.observation, choices), np.frombuffer(stored.mask, np.uint8).reshape(choices, -1) != 0,
        _floats(stored.log_probability, choices), np.array(stored.actions, dtype=np.int32),
    )  # fmt: skip


def _floats(data: bytes, rows: int) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False).reshape(rows, -1)
