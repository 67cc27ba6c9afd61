"""Cards of stored policies: what is beside a checkpoint is what the benchmark would write there."""

import re
from pathlib import Path

import pytest

from benchmarks import hetero64
from benchmarks.card import HeldOut, Training, card, core_minutes, machine_text
from benchmarks.policy import SEEDS, checkpoint, command

STAMP = {
    "date": "2026-11-21T08:19:14+00:00",
    "git": "0123abc",
    "machine": {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 25_276_502_016, "python": "3.11.7"},
}
NUMBER = r"(-?[\d,]+(?:\.\d+)?)"


def numbers(pattern: str, text: str) -> list[float]:
    """Return the numbers that stand where the pattern has #."""
    found = re.search(re.escape(pattern).replace(r"\#", NUMBER), text)
    assert found is not None, pattern
    return [float(number.replace(",", "")) for number in found.groups()]


def written_again(path: Path) -> str:
    """Return the card that the figures of a stored card would give."""
    text = path.read_text(encoding="utf-8")
    seconds, percent, half_width, workloads = (
        *numbers("| time | # s wall time on two cores", text),
        *numbers("| makespan # % (+- #) against `eft`, the best heuristic of the same actions, # workloads", text),
    )
    percent_out, _, high, held, worse = numbers(
        "| held out | makespan # % against `eft`, upper end of the # % interval # %, # workloads with their fault "
        "seeds, paired; worse than `eft` on # % of them", text,
    )  # fmt: skip
    training = Training(seconds, "eft", int(workloads), percent, half_width)
    machine = re.search(r"\| machine, date \| (.*) \|", text)
    assert machine is not None
    seed = int(numbers("--seed #", text)[0])
    return card(path.stem, command(seed), training, HeldOut(int(held), percent_out, high, worse), machine[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stored_card_is_what_its_figures_give(seed: int) -> None:
    path = checkpoint(seed).with_suffix(".md")
    assert path.read_text(encoding="utf-8") == written_again(path)


@pytest.mark.parametrize("target", hetero64.TARGETS)
def test_a_stored_card_of_moves_has_the_command_that_the_benchmark_would_train_by(target: hetero64.Target) -> None:
    text = target.path.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| command | `longshore {target.command}`;" in text
    assert 0.0 < core_minutes(text) < hetero64.MOST_MINUTES


def test_machine_and_date_are_told_in_words() -> None:
    told = machine_text(STAMP, "2.13.0+cpu")
    assert told == "2 cores of an AMD EPYC, 24 GiB, Python 3.11, torch 2.13.0, 2026-11-21, commit 0123abc"
