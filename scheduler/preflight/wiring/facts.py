"""What a tool of the site tells of transceivers, lanes and neighbours, in a file of JSON.

Longshore does not speak to transceivers and switches itself: what does differs from site to site.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ....cluster.files.errors import InputError

MOST_BYTES = 10 << 20
Word = Annotated[str, Field(max_length=300)]


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lane(_Told):
    """One lane of a link; None is not told."""

    bit_error_rate: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    lock: bool | None = None
    signal: bool | None = None


class PortFacts(_Told):
    """What is told of a port; None is not told."""

    present: bool | None = None  # there is a transceiver
    answering: bool | None = None
    configured: bool | None = None
    transceiver: Word | None = None  # part number
    cable: Word | None = None
    neighbour: Word | None = None
    lanes: Annotated[tuple[Lane, ...], Field(max_length=64)] = ()


_FILE = TypeAdapter(dict[Word, PortFacts])
NOTHING = PortFacts()


def read_facts(path: Path | None) -> dict[str, PortFacts]:
    """Return what is told of each port, by its name; nothing without a file.

    Raises:
        InputError: If the file cannot be used.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "does the site's tool write it?", path=path) from error
    if len(content) > MOST_BYTES:
        raise InputError(f"the file has more than {MOST_BYTES} bytes", "is it the right file?", path=path)
    try:
        return _FILE.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(first["msg"], "docs/preflight.md says what it holds", path=path, field=field) from error
