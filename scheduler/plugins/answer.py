"""What a policy's process tells the scheduler, as JSON: nothing that it sends can run code here."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...cluster.errors import PluginError

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Ready(_Message):
    """The policy is loaded, compiled and up to date."""

    kind: Literal["ready"] = "ready"
    name: str
    version: str  # of the policy: the SHA-256 of a checkpoint's file, or the package that it comes from
    waits: bool


class Refused(_Message):
    """The policy could not be loaded."""

    kind: Literal["refused"] = "refused"
    reason: str


class Choice(_Message):
    """What the policy would do."""

    kind: Literal["choice"] = "choice"
    number: int  # of the question
    job: str  # that it starts; it may have turned to another one than was due
    gpus: list[int]  # in the order of their picks; none to wait
    rests: bool = False  # all jobs wait
    took_s: Finite = 0.0
    seen: dict[str, list[Finite]] = {}  # observation, mask and log-probabilities, if it tells them


class Failed(_Message):
    """The policy raised an error."""

    kind: Literal["failed"] = "failed"
    number: int
    reason: str


class _Envelope(BaseModel):
    model_config = ConfigDict(strict=True)
    message: Annotated[Ready | Refused | Choice | Failed, Field(discriminator="kind")]


def read_message(data: bytes) -> Ready | Refused | Choice | Failed:
    """Return a message.

    Raises:
        PluginError: If it is none.
    """
    try:
        return _Envelope.model_validate_json(b'{"message":' + data + b"}").message
    except (ValidationError, ValueError) as error:
        raise PluginError(f"the policy's process sent what is no answer: {str(error).splitlines()[0]}") from error
