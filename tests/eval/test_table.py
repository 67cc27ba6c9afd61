import io

import numpy as np
import pytest
from rich.console import Console

from longshore.eval.comparison import Comparison, compare
from longshore.eval.table import loss_sentences, metric_titles, table_caption, table_rows, terminal_tables
from tests.eval.runs import CLUSTER_GPUS, comparison, finishes, outcome, scenarios

LEARNED = "<b>ppo</b> $x$"


def shown(found: Comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    for table in terminal_tables(found, width):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_the_tables_show_every_cell_at_any_width(count: int, width: int) -> None:
    text = shown(comparison(count), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for row in table_rows(comparison(count)):
        assert all(cell.text in text for cell in (*row.cells, row.versus))


def test_a_table_that_is_cut_repeats_the_policies() -> None:
    wide, narrow = shown(comparison(12), 160), shown(comparison(12), 80)
    assert wide.count("random") == 2  # figures and differences
    assert narrow.count("random") == 4


def test_markup_in_a_name_is_text() -> None:
    runs = {"[red]pack[/red]": outcome(finishes(2))}
    assert "[red]pack[/red]" in shown(compare(runs, scenarios(2), CLUSTER_GPUS, heuristics=runs), 120)


def test_each_metric_has_its_difference_to_the_best_heuristic() -> None:
    differences = shown(comparison(12), 160).partition("Difference to pack")[2]
    line = next(line for line in differences.splitlines() if line.strip().startswith("random"))
    assert line.split()[1] == "+30.0"  # makespan
    assert line.split().count("+100.0") == 1  # twice as many restarts


def test_the_learned_policy_wins_and_random_loses() -> None:
    table = {row.policy: row for row in table_rows(comparison(30))}
    assert table[LEARNED].versus.verdict == "better"
    assert table["random"].versus.verdict == "worse"
    assert table["random"].versus.text == "+30.0 %"
    assert table["random"].worse_in == "100 %"
    assert table["pack"].kind == "best heuristic"
    assert table[LEARNED].cells[0].best


@pytest.mark.parametrize(("scale", "unit"), [(1.0, "h"), (1 / 60, "min"), (1 / 3600, "s")])
def test_times_are_shown_in_a_unit_that_suits_them(scale: float, unit: str) -> None:
    runs = {"pack": outcome(np.full((2, 4), 36000.0 * scale))}
    found = compare(runs, scenarios(2), CLUSTER_GPUS, heuristics=runs)
    assert metric_titles(found)[0] == ("makespan", unit)
    assert table_rows(found)[0].cells[0].text == "10.0 ±0.0"


def test_the_caption_names_the_kind_of_intervals() -> None:
    assert "no intervals" in table_caption(comparison(1))
    assert "means with 95 % t-intervals." in table_caption(comparison(9))
    assert "means with 95 % bootstrap intervals." in table_caption(comparison(10))


def test_a_policy_that_is_better_everywhere_has_no_losses() -> None:
    finish_s = finishes(6)
    runs = {"pack": outcome(finish_s, stops=1, lost_s=9.0), "ppo": outcome(finish_s * np.linspace(0.99, 0.5, 4))}
    found = compare(runs, scenarios(6), CLUSTER_GPUS, heuristics=["pack"])
    kept = [sentence for sentence in loss_sentences(found, "ppo") if "useful" not in sentence]
    assert kept == []


def test_losses_name_the_scenarios_metrics_and_job_sizes() -> None:
    factor = np.array([[1.0], [1.2], [0.9], [0.9], [1.1], [0.8]])
    runs = {"pack": outcome(np.full((6, 4), 7200.0)), "ppo": outcome(7200.0 * factor * [1.0, 1.0, 1.0, 1.05])}
    found = loss_sentences(compare(runs, scenarios(6), CLUSTER_GPUS, heuristics=["pack"]), "ppo")
    assert found[0] == "Heuristics with a better mean makespan: pack."
    assert found[1].startswith("Worse makespan than pack in 3 of 6 scenarios (50 %); worst: scenario 1 (+26.0 %), ")
    assert any(sentence.startswith("Worse in makespan: +3.") and "not clear" in sentence for sentence in found)
    assert any("jobs with 5 to 8 GPUs: +3." in sentence for sentence in found)
    assert not any("jobs with 1 GPU:" in sentence for sentence in found)


def test_losses_name_the_heuristics_that_are_better() -> None:
    runs = {name: outcome(finishes(4) * factor) for name, factor in (("pack", 1.0), ("eft", 0.9), ("ppo", 1.1))}
    found = loss_sentences(compare(runs, scenarios(4), CLUSTER_GPUS, heuristics=["pack", "eft"]), "ppo")
    assert found[0] == "Heuristics with a better mean makespan: eft, pack."
    assert "Worse in makespan: +22.2 % [+22.2, +22.2], a clear loss." in found
