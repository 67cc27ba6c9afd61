"""What policies trained on a trace reach, as it is stored and as a page."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from .against import Difference, geometric_mean
from .markdown import wrapped

HEADER = (
    "| policy | mean JCT (h) | against `patient` (%) | against FIFO `eft` (%) | each window, against `patient` (%) | "
    "p99 JCT (h) | p99 slowdown | longest wait (h) |"
)
ABOUT = """\
- The columns *against* compare the mean JCT. Each cell is the geometric mean of the ratios in the windows, with the \
95 % t-interval over windows ([evaluation.md](evaluation.md#intervals)). A window's draws of speeds, lemon and faults \
are averaged first. Below 0 is better. Windows share no job.
- `patient` has the factor that gives the best mean JCT on the training windows, with the same order and estimates.
- *Learned* is the mean of its training seeds. The intervals show how much the windows differ, not the seeds. The last \
row has the range of the seeds.
- p99 JCT and p99 slowdown are means over scenarios. The longest wait is that of any job in any scenario. The slowdown \
of a job is its JCT divided by its work on one node of speed 1, or by 10 min if that is longer.

How to read it:

- There are {windows} test windows. So few windows give wide intervals. A gain in all windows says more than a mean \
that comes from one of them. The figures say something about this trace and about no other.
- The training windows hold jobs that the policy was trained on, under other draws of speeds and faults. If it gains \
much more there than on the test windows, it has learned those jobs by heart.
- Training minimises the mean JCT and nothing else. Where p99 JCT or the longest wait is above that of `patient`, long \
jobs pay for short ones.
"""


class Figures(BaseModel):
    """How a policy did on some windows; each list has a value for a window, its draws averaged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean_jct_s: list[float]
    p99_jct_s: list[float]
    p99_slowdown: list[float]
    longest_wait_s: list[float]  # of all draws


class Rivals(BaseModel):
    """What the policies of a regime are measured against, on some windows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fifo: Figures  # `eft` under strict FIFO, without waiting
    eft: Figures  # `eft` under the regime, without waiting
    patient: Figures
    patience: float  # its factor


class Run(BaseModel):
    """A trained policy: its figures by the name of the windows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float  # wall time of training
    validation_percent: float  # against the best heuristic with its usual factor
    machine: str
    figures: dict[str, Figures]


class Stored(BaseModel):
    """Everything that was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rivals: dict[str, dict[str, Rivals]] = {}  # by regime and windows
    runs: dict[str, Run] = {}  # by the command that trained it


class Part(NamedTuple):
    """A table: policies of one regime on some windows."""

    name: str
    rivals: Rivals
    learned: list[Figures]  # of each training seed


def log_ratio(mine: Sequence[Figures], rival: Figures) -> NDArray[np.float64]:
    """Return the logarithm of the ratio of mean JCT in each window, its mean over policies, shape (windows,)."""
    ours: NDArray[np.float64] = np.log([one.mean_jct_s for one in mine]).mean(axis=0)
    return ours - np.log(rival.mean_jct_s)


def against(mine: Sequence[Figures], rival: Figures) -> Difference:
    """Return the geometric mean over windows of the ratio of mean JCT, with its interval."""
    return geometric_mean(log_ratio(mine, rival))


def page(title: Sequence[str], parts: dict[str, list[Part]], trained: Sequence[str]) -> str:
    """Return the page in Markdown.

    Args:
        title: Its first lines.
        parts: Tables by the heading that they stand under.
        trained: Paragraphs about training for each heading, with empty lines between them.
    """
    windows = min((len(part.rivals.fifo.mean_jct_s) for each in parts.values() for part in each), default=0)
    lines = [*title, "", *ABOUT.format(windows=windows).split("\n")]
    for (heading, tables), text in zip(parts.items(), trained, strict=True):
        lines += [f"## {heading}", "", *text.split("\n"), ""]
        for part in tables:
            lines += [f"{part.name}:", "", HEADER, "| --- |" + " --- |" * 7, *_rows(part), ""]
    return wrapped(lines)


def _rows(part: Part) -> list[str]:
    rivals = part.rivals
    own = [] if rivals.eft == rivals.fifo else [_row("`eft`, no waiting", [rivals.eft], rivals)]
    rows = [
        _row("`eft`, strict FIFO, no waiting", [rivals.fifo], rivals),
        *own,
        _row(f"`patient`, factor {rivals.patience:g}", [rivals.patient], rivals),
        _row(f"learned, {len(part.learned)} training seeds", part.learned, rivals),
    ]
    return [*rows, f"| its seeds | | {_seeds(part)} | | | | | |"]


def cells_of(part: Part) -> list[str]:
    """Return how learned policies fare against `patient`, from the best seed to the worst, and against FIFO `eft`."""
    return [_cell(part.learned, part.rivals.patient), _seeds(part), _cell(part.learned, part.rivals.fifo)]


def _seeds(part: Part) -> str:
    each = [against([one], part.rivals.patient).percent for one in part.learned]
    return f"{min(each):+.1f} to {max(each):+.1f}"


def _row(name: str, mine: Sequence[Figures], rivals: Rivals) -> str:
    jct, p99, slowdown = (
        float(np.mean([getattr(one, field) for one in mine])) for field in ("mean_jct_s", "p99_jct_s", "p99_slowdown")
    )
    wait = max(max(one.longest_wait_s) for one in mine)
    windows = ", ".join(f"{percent:+.1f}" for percent in 100.0 * np.expm1(log_ratio(mine, rivals.patient)))
    cells = [
        name, f"{jct / 3600:.2f}", _cell(mine, rivals.patient), _cell(mine, rivals.fifo),
        "" if mine == [rivals.patient] else windows, f"{p99 / 3600:.0f}", f"{slowdown:.1f}", f"{wait / 3600:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _cell(mine: Sequence[Figures], rival: Figures) -> str:
    if list(mine) == [rival]:
        return ""
    found = against(mine, rival)
    return f"{found.percent:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"
