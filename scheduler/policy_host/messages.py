"""What a policy's process and the scheduler send each other, as JSON: nothing in it can run code here."""

import base64
import hashlib
import select
import socket
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ...agents.protocol import DecisionRecord
from ...agents.registry import base_policy_name, checkpoint_in
from ...cluster.files.errors import PluginError
from ...cluster.files.output_file import encodable_text
from ...cluster.files.plugins import registered

Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, AfterValidator(encodable_text)]  # JSON has no form for bytes of a path that are no UTF-8
MAX_RECORD_BYTES = 1 << 20  # of a decision; a larger observation is not sent
MAX_NAME, MAX_REMARK = 200, 1000  # characters
LOG_PROBABILITY_ROUNDING = 1e-3  # by which a log-probability may be above 0


class _AnswerMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Ready(_AnswerMessage):
    """The policy is loaded and compiled."""

    kind: Literal["ready"] = "ready"
    name: Text
    waits: bool
    remark: Annotated[Text, Field(max_length=MAX_REMARK)] = ""  # how its training differs from its use here


class Followed(_AnswerMessage):
    """The policy knows the cluster that was sent."""

    kind: Literal["followed"] = "followed"
    number: int  # of the message with it


class RecordParts(_AnswerMessage):
    """The observation of a network and its choice, in base64."""

    observations: str  # little-endian float32, choice by choice
    masks: str  # one byte an action, 0 or 1
    log_probabilities: str  # little-endian float32, one an action
    actions: list[int]  # one a choice


class PolicyAnswer(_AnswerMessage):
    """What the policy would do."""

    kind: Literal["choice"] = "choice"
    number: int  # of the question
    job: Annotated[str, Field(max_length=MAX_NAME)]  # that it starts; it may be another one than was due
    gpus: list[int]  # in the order of their picks; none to wait
    rests: bool = False  # all jobs wait
    took_s: Finite = 0.0
    record: RecordParts | None = None  # if the policy has one


class Failed(_AnswerMessage):
    """The policy could not be loaded, or raised an error."""

    kind: Literal["failed"] = "failed"
    number: int = 0  # of the question; 0 if it could not be loaded
    reason: Text


Message = Ready | Followed | PolicyAnswer | Failed
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


class StoredRecord(NamedTuple):
    """What a network saw, as it is stored."""

    observation: bytes  # little-endian float32, choice by choice
    mask: bytes  # one byte an action
    log_probability: bytes  # little-endian float32, -inf where an action was closed
    actions: tuple[int, ...]  # one a choice


def record_parts_of(record: DecisionRecord) -> RecordParts | None:
    """Return what is sent of what a network saw, None if that is too much."""
    arrays = (record.observations.astype("<f4"), record.masks.astype("u1"), record.log_probabilities.astype("<f4"))
    if sum(array.nbytes for array in arrays) > MAX_RECORD_BYTES:
        return None
    texts = (base64.b64encode(array.tobytes()).decode() for array in arrays)
    return RecordParts(**dict(zip(RecordParts.model_fields, (*texts, record.actions.tolist()), strict=True)))


def stored_record_of(parts: RecordParts) -> StoredRecord:
    """Return what is stored of what a network saw.

    Raises:
        PluginError: If its parts do not fit together, or are not finite.
    """
    try:
        texts = (parts.observations, parts.masks, parts.log_probabilities)
        observation, mask, log_probability = (base64.b64decode(text, validate=True) for text in texts)
    except ValueError as error:  # not ASCII, or no base64
        raise PluginError(f"what the policy saw is no base64: {error}") from error
    stored = StoredRecord(observation, mask, log_probability, tuple(parts.actions))
    record = decision_record_of(stored)
    if not np.isfinite(record.observations).all():
        raise PluginError("what the policy saw is not finite")
    closed, logs = ~record.masks, record.log_probabilities
    if not (np.isneginf(logs) == closed).all() or not (logs <= LOG_PROBABILITY_ROUNDING).all():
        raise PluginError("the policy's log-probabilities are none, or do not go with its mask")
    if closed[np.arange(record.actions.size), record.actions].any():
        raise PluginError("the policy took an action that its mask closes")
    return stored


def decision_record_of(stored: StoredRecord) -> DecisionRecord:
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
        _float_rows(stored.observation, choices), np.frombuffer(stored.mask, np.uint8).reshape(choices, -1) != 0,
        _float_rows(stored.log_probability, choices), np.array(stored.actions, dtype=np.int32),
    )  # fmt: skip


def _float_rows(data: bytes, rows: int) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False).reshape(rows, -1)


MAX_EDITION_BYTES = 64 << 20
Stamp = tuple[int, int, int]  # of a file: when it was written, its size and its number


@dataclass(frozen=True, slots=True)
class Edition:
    """What is loaded: a file may change while it is, and a policy that ran well may have to be started again."""

    name: str  # as `longshore policy list` lists it, the path of a checkpoint, or rollouts of either
    version: str  # SHA-256 of the checkpoint, or name and version of the package that the policy is part of
    content: bytes | None = None  # of the checkpoint


def read_edition(name: str) -> Edition:
    """Return the present version of a policy, without content if its file does not exist."""
    path = checkpoint_in(name)
    try:
        if path is not None and path.is_file() and path.stat().st_size <= MAX_EDITION_BYTES:
            content = path.read_bytes()
            return Edition(name, hashlib.sha256(content).hexdigest(), content)
    except OSError:
        pass
    return Edition(name, _package_version_of(base_policy_name(name)))


def _package_version_of(name: str) -> str:
    point = registered("policies").get(name)
    if point is not None and point.dist is not None:
        return f"{point.dist.name} {point.dist.version}"
    return f"longshore {version('longshore')}"


def checkpoint_stamp(name: str) -> Stamp | None:
    """Return what changes when a policy's checkpoint is replaced, None if it has none, or the file does not exist."""
    path = checkpoint_in(name)
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


MAX_MESSAGE_BYTES = 4 << 20  # of a message of a policy's process; messages to it may be larger
LENGTH_BYTES = 8
READ_BYTES = 1 << 18


class Channel:
    """One side of a connection. What has come of a message is kept when the time is over, for the next try.

    Args:
        connection: A stream socket.
        max_bytes: Of a message that comes in.
    """

    def __init__(self, connection: socket.socket, max_bytes: int) -> None:
        self._connection, self._most_bytes = connection, max_bytes
        self._came = bytearray()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connection, select.POLLIN)
        self._writable.register(connection, select.POLLOUT)

    def send(self, data: bytes, until: float | None = None) -> None:
        """Send a message.

        Args:
            data: The message.
            until: Of `time.monotonic`; None for no limit.

        Raises:
            OSError: If the other side has ended, TimeoutError if it does not listen; then nothing can follow.
        """
        left = memoryview(len(data).to_bytes(LENGTH_BYTES) + data)
        while left:
            try:
                left = left[self._connection.send(left[:READ_BYTES], socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                _wait_for_socket(self._writable, until)

    def receive(self, until: float | None = None) -> bytes:
        """Return the next message; one that is there is returned however late it is.

        Raises:
            EOFError: If the other side has ended.
            OSError: TimeoutError if there is none in time; if it is too long.
        """
        while (message := self._take_message()) is None:
            try:
                piece = self._connection.recv(READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait_for_socket(self._readable, until)
                continue
            if not piece:
                raise EOFError
            self._came += piece
            if until is not None and time.monotonic() > until and self._next_message_bytes() > len(self._came):
                raise TimeoutError  # or one that sends byte by byte would never be late
        return message

    def close(self) -> None:
        """Let the other side know that this one has ended; the socket itself is closed by who made it."""
        self._connection.shutdown(socket.SHUT_RDWR)

    def _next_message_bytes(self) -> int:
        """Return the bytes of the message that comes next, its length included."""
        if len(self._came) < LENGTH_BYTES:
            return LENGTH_BYTES
        size = int.from_bytes(self._came[:LENGTH_BYTES])
        if size > self._most_bytes:
            raise OSError(f"a message of {size} bytes")
        return LENGTH_BYTES + size

    def _take_message(self) -> bytes | None:
        """Take the next message out of what has come, None if it is not all there."""
        size = self._next_message_bytes()
        if len(self._came) < size:
            return None
        message = bytes(self._came[LENGTH_BYTES:size])
        del self._came[:size]
        return message


def _wait_for_socket(poll: select.poll, until: float | None) -> None:
    """Wait until something can be done.

    Raises:
        TimeoutError: If that is too late.
    """
    if until is None:
        poll.poll()
        return
    left_s = until - time.monotonic()
    if left_s <= 0.0 or not poll.poll(1000.0 * left_s):
        raise TimeoutError
