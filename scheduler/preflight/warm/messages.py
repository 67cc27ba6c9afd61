"""What a runner and a warm process tell each other, as JSON: a process that is broken may send anything."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ....cluster.files.errors import BackendError
from ....cluster.files.output_file import readable
from ..check import Finding, Outcome
from ..context import Chosen, Group
from ..workload import Workload

MOST_BYTES = 1 << 20  # of a message
MOST_FINDINGS, MOST_TEXT = 1000, 1000
Text = Annotated[str, Field(max_length=MOST_TEXT)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Order(_Message):
    """A check to run."""

    number: int
    check: str  # its registered name
    chosen: Chosen
    workload: Workload
    group: Group | None = None


class Told(_Message):
    """A finding on its way."""

    outcome: Outcome
    device: Text = ""
    got: Text = ""
    wanted: Text = ""
    action: Text = ""
    reason: Text = ""
    figure: float | None = None
    text: Text = ""


class Answer(_Message):
    """What a check has found. Number 0 says that the process is warm."""

    number: int
    findings: Annotated[tuple[Told, ...], Field(max_length=MOST_FINDINGS)] = ()
    seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0


def answer_of(number: int, findings: list[Finding], seconds: float) -> bytes:
    """Return an answer, as it is sent; what is too long is cut."""
    told = tuple(_told(finding) for finding in findings[:MOST_FINDINGS])
    return Answer(number=number, findings=told, seconds=seconds).model_dump_json().encode()


def _told(finding: Finding) -> Told:
    texts = ("device", "got", "wanted", "action", "reason", "text")
    cut = {name: readable(getattr(finding, name))[:MOST_TEXT] for name in texts}
    return Told(outcome=finding.outcome, figure=finding.figure, **cut)


def read_answer(content: bytes) -> tuple[Answer, list[Finding]]:
    """Return an answer that came, and its findings.

    Raises:
        BackendError: If it is none.
    """
    try:
        answer = Answer.model_validate_json(content)
    except ValidationError as error:
        raise BackendError("the process of the node answers nonsense") from error
    return answer, [Finding(**dict(told)) for told in answer.findings]
