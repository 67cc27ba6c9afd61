"""The public traces that can be downloaded: a table, each row with what pins its file to the last bit."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from ...files.errors import InputError
from ...files.input_problems import nearest
from ...files.json_array import read_json_array

OURS = Path(__file__).with_name("catalogue.json")
MOST_BYTES = 100 * 2**20  # of a file whose size is not known: GitHub takes no larger one
FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"


class PublicTrace(BaseModel, frozen=True, extra="forbid"):
    """A file of a public repository, at one commit."""

    name: Annotated[str, Field(pattern=FILE_NAME)]
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=1)] | None = None
    licence: Annotated[str, Field(min_length=1)]
    good_for: str
    saved_as: Annotated[str, Field(pattern=FILE_NAME)]  # a folder, where the file is an archive
    members: str | None = None  # of an archive (tar.gz): the names of the files to take, such as *.csv

    @property
    def most_bytes(self) -> int:
        """Bytes that the file has, or may have if its size is not known."""
        return MOST_BYTES if self.size_bytes is None else self.size_bytes

    def url(self, mirror: str) -> str:
        """Return where the file is: below a mirror, by repository and commit."""
        return f"{mirror.rstrip('/')}/{self.repository}/{self.commit}/{self.path}"


def read_catalogue(path: Path = OURS) -> dict[str, PublicTrace]:
    """Return the traces of a catalogue by name, in its order.

    Raises:
        InputError: If the file cannot be used, or has a name twice.
    """
    found: dict[str, PublicTrace] = {}
    for line, trace in read_json_array(path, PublicTrace):
        if trace.name in found:
            raise InputError(f"{trace.name!r} stands there twice", "rename one", path=path, line=line, field="name")
        found[trace.name] = trace
    return found


def trace_named(name: str, catalogue: dict[str, PublicTrace]) -> PublicTrace:
    """Return a trace of a catalogue.

    Raises:
        InputError: If it has none of that name.
    """
    if name not in catalogue:
        raise InputError(f"there is no public trace {name!r}", nearest(name, catalogue), field="NAME")
    return catalogue[name]
