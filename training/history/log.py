"""Decisions as `longshore decisions` writes them, read line by line.

The file is all that training knows of the scheduler: docs/plugins.md says what is in it. A line holds a decision and
what happened since the one before it. What is of no use here is passed over.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ...cluster.files.errors import InputError
from ...cluster.model.scenarios import OLDER_RULES, ORDERS, Rules
from ...cluster.model.topology import Cluster
from ...cluster.state.border import sound_cluster, sound_rules

PAGE = "write the file by `longshore decisions --out FILE`"


class Asked(NamedTuple):
    """What was known of a job when it was submitted."""

    job: str
    gpus: int
    estimate_s: float
    submitted_s: float
    rank: int
    compute_s: float
    parameter_bytes: float
    types: tuple[int, ...] = ()  # numbers of the node types that suit it, all if there are none
    spread: tuple[int, int, float, float, float] | None = None  # how a job with a plan lies on its GPUs
    user: str = ""  # whose it is: users of one rank take turns


class Standing(NamedTuple):
    """What had happened to a job."""

    guess_s: float
    entered_s: float
    saved_s: float  # work that checkpoints hold
    wait_s: float
    stops: int
    first_start_s: float
    start_s: float
    overhead_s: float
    slowdown: float
    gpus: tuple[int, ...]  # none while it waited
    came_back: bool = False  # it waited since it was stopped


class Opening(NamedTuple):
    """Where the cluster stood when the scheduler took it up."""

    cluster: Cluster
    rules: Rules
    repair_mean_s: float
    hazard_per_s: NDArray[np.float64]  # (gpus,) as policies were told
    now_s: float
    jobs: Sequence[tuple[Asked, Standing]]
    down: Sequence[int]  # GPUs, each as often as it was out of service
    estimates: tuple[int, float]  # jobs so far, and the sum of their estimates


class Call(NamedTuple):
    """Something that happened."""

    method: str
    values: tuple[Any, ...]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Expected(_Model):
    """Of a start."""

    slowdown: float


class Told(_Model):
    """Why it was decided so."""

    expected: Expected | None = None
    actions: tuple[int, ...] | None = None
    behaviour_probability: float | None = None  # of what was done; None if no policy drew or chose it
    sample_temperature: float | None = None  # None: it was not drawn


class _Past(_Model):
    n: int
    told: list[list[Any]]
    site: dict[str, Any] | None = None
    known: list[Any] | None = None


class Line(_Model):
    """A decision."""

    job_id: str
    number: int | None = None  # of the attempt that came of it; None if it waits
    explanation: Told
    observation: str | None = None  # base64 of little-endian float32; so are the others, of bytes and float32
    mask: str | None = None
    log_probability: str | None = None
    ended_s: float | None = None  # of the attempt that came of it
    outcome: str = ""
    past: _Past

    @property
    def calls(self) -> list[Call]:
        """What happened since the decision before."""
        return [call for entry in self.past.told if (call := _call(entry)) is not None]

    @property
    def opening(self) -> Opening | None:
        """Where the cluster stood before; None where that follows from the line before."""
        return None if self.past.site is None else _opening(self.past.site, self.past.known)


_SPREAD = tuple[int, int, float, float, float]
_ASKED = (  # what is at its default is left out from the end
    tuple[str, int, float, float, int, float, float]
    | tuple[str, int, float, float, int, float, float, tuple[int, ...]]
    | tuple[str, int, float, float, int, float, float, tuple[int, ...], _SPREAD | None]
    | tuple[str, int, float, float, int, float, float, tuple[int, ...], _SPREAD | None, str]
)
_STANDING = (
    tuple[float, float, float, float, int, float, float, float, float, tuple[int, ...]]
    | tuple[float, float, float, float, int, float, float, float, float, tuple[int, ...], bool]
)
_KNOWN: TypeAdapter[Any] = TypeAdapter(
    tuple[float, list[tuple[_ASKED, _STANDING]], list[str], list[int], tuple[int, float]]
)
_VALUES: dict[str, TypeAdapter[Any]] = {
    "begin": TypeAdapter(tuple[float]),
    "submit": TypeAdapter(tuple[_ASKED]),
    "come_back": TypeAdapter(tuple[_ASKED, _STANDING]),
    "rejoin": TypeAdapter(tuple[_ASKED, _STANDING]),
    "finish": TypeAdapter(tuple[str]),
    "stop": TypeAdapter(tuple[str, float | None]),
    "withdraw": TypeAdapter(tuple[str]),
    "take_out": TypeAdapter(tuple[int]),
    "bring_back": TypeAdapter(tuple[int]),
    "fail": TypeAdapter(tuple[tuple[int, ...]]),
}


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the decisions of a file in their order.

    Raises:
        InputError: If it cannot be read, naming the line.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                yield _line(path, number, text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", PAGE, path=path) from error


def _line(path: Path, number: int, text: str) -> Line:
    try:
        return Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"no decision: {first['msg']}", PAGE, path=path, line=number, field=field) from error


def _call(entry: Sequence[Any]) -> Call | None:
    """Return what happened, None if it changes nothing here.

    Raises:
        ValueError: If it cannot have happened.
    """
    if not entry:
        raise ValueError("an entry of what happened is empty")
    method = entry[0]
    if method not in _VALUES:
        return None
    values = _VALUES[method].validate_python(tuple(entry[1:]))
    kinds = {"submit": (Asked,), "come_back": (Asked, Standing), "rejoin": (Asked, Standing)}.get(method)
    return Call(method, values if kinds is None else tuple(kind(*it) for kind, it in zip(kinds, values, strict=True)))


def _opening(site: Mapping[str, Any], known: object) -> Opening:
    """Return where a cluster stood.

    Raises:
        ValueError: If it cannot have stood so.
        KeyError: If a part is missing.
    """
    arrays = {name: _array(array) for name, array in site["cluster"].items()}
    everywhere = np.ones((1, arrays["speed"].size), dtype=np.int32)  # which nodes suit whom comes with the jobs
    cluster = sound_cluster(Cluster(**arrays, suits=everywhere))
    told = {**OLDER_RULES, **site["rules"], "order": ORDERS[site["rules"]["order"]]}
    rules = sound_rules(Rules(**{name: kind(told[name]) for name, kind in Rules.__annotations__.items()}))
    now_s, jobs, _, down, estimates = _KNOWN.validate_python(known)
    return Opening(
        cluster, rules, float(site["process"]["repair_mean_s"]), _array(site["hazard_per_s"]), now_s,
        [(Asked(*asked), Standing(*standing)) for asked, standing in jobs], down, estimates,
    )  # fmt: skip


def _array(written: Mapping[str, str]) -> NDArray[Any]:
    if written["dtype"] not in ("<i4", "<f8"):
        raise ValueError(f"an array of {written['dtype']!r}")
    return np.frombuffer(b64decode(written["base64"], validate=True), written["dtype"]).copy()


def floats_of(text: str) -> NDArray[np.float32]:
    """Return numbers of a decision."""
    return np.frombuffer(b64decode(text, validate=True), "<f4").astype(np.float32)
