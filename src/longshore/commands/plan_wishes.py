"""What a job file says behind `plan:` and `deadline:`.

Source: SPEC P1.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from ..cluster.files.durations import seconds_of
from ..cluster.files.exact_types import ExactTypes
from ..cluster.files.yaml_file import YamlFile, validated

AUTO = "auto"
STAGE = "longshore.stage"  # module that carries out plans
HOW = "write `plan: {model: train.py:build, samples: 1e6}`"
BATCH, STEPS = 256, 20  # as `longshore plan` and the module have them
LEAST_S, MOST_S = 1e-3, 366 * 86400.0  # as of a job's run time
MOST_SAMPLES, MOST_TOKENS = 1e15, 1e18


Degrees = Annotated[
    str,
    Field(
        pattern=r"^[1-9][0-9]{0,5}x[1-9][0-9]{0,5}x[1-9][0-9]{0,5}$",
        description="Data x pipeline x tensor, as in 2x2x1.",
    ),
]


class PlanWish(ExactTypes):
    """How a model is to be planned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1, max_length=4096)
    samples: float | None = Field(None, ge=1.0, le=MOST_SAMPLES)
    tokens: float | None = Field(None, ge=1.0, le=MOST_TOKENS)
    batch: int = Field(BATCH, ge=1, le=10**7)
    deadline: Annotated[str, Field(max_length=100)] | float | None = None  # seconds, or a text such as 24h
    gpus: int | None = Field(None, ge=1, le=1_000_000)
    hardware: str | None = Field(None, min_length=1, max_length=4096)  # profile
    degrees: Degrees | None = None

    @property
    def deadline_s(self) -> float | None:
        """Time for all of the training; None for as soon as can be."""
        return seconds_of(self.deadline) if isinstance(self.deadline, str) else self.deadline

    @property
    def wanted(self) -> tuple[int, int, int] | None:
        """Data, pipeline and tensor degree; None for any."""
        if self.degrees is None:
            return None
        data, pipeline, tensor = map(int, self.degrees.split("x"))
        return data, pipeline, tensor


def wish_of(file: YamlFile, data: Mapping[str, Any]) -> PlanWish:
    """Return what a job file wishes of its plan.

    Args:
        file: Names the lines in errors.
        data: What it says.

    Raises:
        InputError: If it cannot be used.
    """
    if "plan" in data and data["plan"] is None:
        raise file.error(("plan",), "there is nothing behind it", f"{HOW}, or leave it out")
    if "plan" not in data:
        raise file.error(("deadline",), "there is nothing that a deadline is for", f"{HOW} too")
    said = data["plan"]
    if said == AUTO:
        said = _of_command(file, data.get("command"))
    elif not isinstance(said, dict):
        fix = f"{HOW}, `plan: auto`, or here the content of the file that `longshore plan --out` wrote"
        raise file.error(("plan",), f"{file.seen(('plan',), said)} is no plan", fix)
    place: tuple[str, ...] = ("plan", "deadline")
    if data.get("deadline") is not None:
        if said.get("deadline") is not None:
            raise file.error(("deadline",), "there are two deadlines", "leave out this one or that of `plan`")
        said, place = {**said, "deadline": data["deadline"]}, ("deadline",)
    wish = validated(file, PlanWish, said, ("plan",))
    _check_deadline(file, place, wish)
    if (wish.samples is None) == (wish.tokens is None):
        problem = "nobody says how long the training is" if wish.samples is None else "its length is said twice"
        raise file.error(("plan",), problem, "give either `samples` or `tokens`")
    return wish


def _check_deadline(file: YamlFile, place: tuple[str, ...], wish: PlanWish) -> None:
    try:
        deadline_s = wish.deadline_s
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise file.error(place, problem, fix) from error
    if deadline_s is not None and not LEAST_S <= deadline_s <= MOST_S:
        raise file.error(place, f"{file.seen(place, wish.deadline)} is too short or too long", "write 1ms to 366d")


def _of_command(file: YamlFile, command: object) -> dict[str, Any]:
    """Return what a command of the module that carries out plans says of a model, and of how long it trains."""
    words = [str(it) for it in command] if isinstance(command, list) else []
    behind = words[words.index(STAGE) + 1 :] if STAGE in words else []
    if len(behind) < 2 or behind[0] != "-" or behind[1].startswith("-"):
        problem = f"auto takes the model from a command `python -m {STAGE} - train.py:build --steps 1000`"
        raise file.error(("plan",), problem, f"{HOW}, or such a command")
    steps = _steps(behind)
    if not 1 <= steps * BATCH <= MOST_SAMPLES:
        raise file.error(("command",), "its --steps cannot be used", "write a whole number of at least 1")
    return {"model": behind[1], "samples": float(steps * BATCH)}


def _steps(words: Sequence[str]) -> int:
    said = [after for word, after in pairwise(words) if word == "--steps"]
    said += [word.partition("=")[2] for word in words if word.startswith("--steps=")]
    if not said:
        return STEPS
    return int(said[-1]) if said[-1].isascii() and said[-1].isdecimal() and len(said[-1]) < 16 else 0
