"""What a supervisor left in its folder, as the scheduler reads it: strictly, since the job could write there too."""

from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ...files.durable import read_whole
from ...model.run import RankEnd

_MOST_BYTES = 1 << 20

_Whole = Annotated[int, Field(ge=0)]
_Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_End = tuple[_Whole, Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=127)], _Time]


class Marker(BaseModel):
    """A file that says something of an attempt."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    file_name: ClassVar[str]

    attempt: str


class Started(Marker):
    """Who the supervisor of an attempt is, and its guard."""

    file_name = "started.json"

    pid: Annotated[int, Field(gt=0)]
    start_ticks: _Whole
    boot: str
    session: _Whole
    guard: tuple[_Whole, _Whole] = (0, 0)  # pid and start; a pid of 0 for none


class Ranks(Marker):
    """The processes of an attempt's ranks: pid, which is their group's number too, and start."""

    file_name = "ranks.json"

    started_s: _Time
    ranks: tuple[tuple[Annotated[int, Field(gt=0)], _Whole], ...]
    cgroup: str = ""  # path of their control group, "" for none


class Ends(Marker):
    """Ranks that ended while others run: rank, exit code, signal, Unix time."""

    file_name = "ends.json"

    ends: tuple[_End, ...]


class Exited(Marker):
    """How an attempt ended, and its ranks."""

    file_name = "exit.json"

    ends: tuple[_End, ...]
    boot: str
    reason: str
    started_s: _Time


MarkerT = TypeVar("MarkerT", bound=Marker)


def read_marker(folder: int, attempt: str, kind: type[MarkerT]) -> MarkerT | None:
    """Return a marker of an attempt, None if it is not there.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name, which the marker must bear.
        kind: Which marker.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no such marker, or another attempt's.
    """
    name = kind.file_name
    try:
        content = read_whole(folder, name, _MOST_BYTES)
    except FileNotFoundError:
        return None
    marker = kind.model_validate_json(content)
    if marker.attempt != attempt:
        raise ValueError(f"{name} is of attempt {marker.attempt!r}, not of {attempt!r}")
    return marker


def rank_ends(marker: Ends | Exited | None) -> tuple[RankEnd, ...]:
    """Return how ranks ended, in the order of their ends."""
    return () if marker is None else tuple(RankEnd(*end) for end in marker.ends)
