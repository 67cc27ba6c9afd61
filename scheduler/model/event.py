"""What happened, as it is to be stored."""

from collections.abc import Mapping
from typing import NamedTuple


class NewEvent(NamedTuple):
    """An event to be added."""

    kind: str
    writer: str  # role that writes it
    at_s: float  # Unix time
    job_id: str | None = None
    number: int | None = None  # of the attempt; None for what concerns the job itself
    version: int | None = None  # of the job or attempt after the change; None if the event is no change
    was: str = ""
    now: str = ""
    fence: int | None = None  # token of the writer's lease
    cause: str = ""
    data: Mapping[str, object] | None = None
