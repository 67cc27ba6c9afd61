"""The card of a stored policy: how it was trained, what it reached, and where it loses."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

TEXT = """\
# {name}

Places jobs node by node on clusters of any size; trained on the preset `hetero64` \
(64 GPUs of two speeds with a lemon node, 64 jobs at once, strict FIFO, no waiting).

| | |
| --- | --- |
| algorithm, network | masked PPO from random weights, `set`; actions `node`, observation `full`, reward `potential` |
| command | `longshore {command}`; this is its `best.zip` |
| time | {training.seconds:.0f} s wall time on two cores, compilation and validations included |
| machine, date | {machine} |
| validation | makespan {training.percent:.2f} % (+- {training.half_width:.2f}) against `{training.rival}`, \
the best heuristic of the same actions, {training.workloads:,} workloads |
| held out | makespan {held_out.percent:.2f} % against `eft`, upper end of the 95 % interval {held_out.high:.2f} %, \
{held_out.workloads:,} workloads with their fault seeds, paired; worse than `eft` on {held_out.worse:.0f} % of them \
(`make bench-policy`) |

Weights alone never run code: the zip holds a JSON schema and NumPy arrays. \
A version whose features differ refuses it.

Where it loses: where waiting is allowed, `patient` is 15 % below `eft` and beats it. \
Run times and hazards were exact in training; on traces with arrivals, and on other clusters, \
compare it with the heuristics first (`longshore evaluate --trace ... --cluster ...`).
"""


CANDIDATES_TEXT = """\
# {name}

Takes whole placements, or waits, on clusters of any size; trained on the preset `hetero64` with waiting, for the \
makespan. Run it with `--waiting`.

| | |
| --- | --- |
| algorithm, network | distillation of rollouts, `candidates`; actions `candidate` |
| command | `longshore {command}`; this is its `best.zip` |
| time | {core_minutes:.1f} core-minutes, labels, compilation and validations included |
| machine, date | {machine} |
| validation | {training.percent:.2f} % (+- {training.half_width:.2f}) against `{training.rival}`, \
{training.workloads:,} workloads |
| held out | {held_out.percent:.2f} % against `patient`, upper end of the 95 % interval {held_out.high:.2f} %, \
{held_out.workloads:,} workloads with their fault seeds, paired; worse than `patient` on {held_out.worse:.0f} % of \
them (`make bench-hetero64`) |

Weights alone never run code: the zip holds a JSON schema and NumPy arrays. \
A version whose features differ refuses it.

Where such policies lose: on real traces, whose jobs arrive over time and whose queues are often short. Ten traces, \
none of them used in training, have 98 windows in their last 30 %; there the mean JCT of `hetero64-wait` against \
`patient` is +2.2 % [-0.3, +4.3] under EASY backfill and +5.3 % [+3.6, +7.4] under shortest first, aged after a week \
(`make bench-unseen`, 2026-11-23). Serve `patient`, the default, unless `longshore evaluate --trace` shows that this \
policy is better on your own trace.
"""


class Training(NamedTuple):
    """A training run and its best validation."""

    seconds: float  # wall time
    rival: str  # best heuristic on the validation workloads
    workloads: int  # validated on
    percent: float  # difference of the mean makespans in per cent of the rival's, below 0 is better
    half_width: float  # of its 95 % interval
    core_s: float = 0.0  # CPU time


class HeldOut(NamedTuple):
    """A policy against `eft` on workloads that neither training nor validation saw."""

    workloads: int
    percent: float  # difference of the mean makespans in per cent of `eft`'s
    high: float  # upper end of its 95 % interval
    worse: float  # per cent of the workloads on which it is worse


def card(name: str, command: Sequence[str], training: Training, held_out: HeldOut, machine: str) -> str:
    """Return the card of a policy, in Markdown.

    Args:
        name: Of the checkpoint, without `.zip`; `hetero64` is the one that the demo runs.
        command: Arguments of `longshore` that train it.
        training: Its training run.
        held_out: Its held-out figures.
        machine: Where and when, by `machine_text`.
    """
    return TEXT.format(name=name, command=" ".join(command), training=training, held_out=held_out, machine=machine)


def candidates_card(name: str, command: str, training: Training, held_out: HeldOut, machine: str) -> str:
    """Return the card of a policy that takes whole placements, in Markdown.

    Args:
        name: Of the checkpoint, without `.zip`.
        command: Arguments of `longshore` that train it.
        training: All of its training.
        held_out: Its held-out figures, against `patient`.
        machine: Where and when, by `machine_text`.
    """
    return CANDIDATES_TEXT.format(
        name=name, command=command, training=training, core_minutes=training.core_s / 60.0, held_out=held_out,
        machine=machine,
    )  # fmt: skip


def core_minutes(text: str) -> float:
    """Return the time that a card of `candidates_card` has."""
    found = re.search(r"([\d.]+) core-minutes", text)
    return float(found[1]) if found else math.nan


def machine_text(stamp: Mapping[str, object], torch: str) -> str:
    """Return machine, date and sources of a run in words, from its stamp and the version of PyTorch."""
    machine = stamp["machine"]
    assert isinstance(machine, dict)
    cpu, memory = machine["cpu"], round(machine["memory_bytes"] / 2**30)
    article, cores = "an" if cpu[0] in "AEIO" else "a", machine["cores"]
    python = ".".join(machine["python"].split(".")[:2])
    counted = f"{cores} core" if cores == 1 else f"{cores} cores"
    return (
        f"{counted} of {article} {cpu}, {memory} GiB, Python {python}, torch {torch.split('+')[0]}, "
        f"{str(stamp['date'])[:10]}, commit {stamp['git']}"
    )
