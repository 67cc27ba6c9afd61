"""What every metric must do, whoever wrote it, and where one more appears."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from longshore.cluster.files.errors import PluginError
from longshore.cluster.files.plugins import registered
from longshore.eval.comparison import compare
from longshore.eval.figures import forest
from longshore.eval.metrics import Metric, Result, metric_of, registered_metrics
from longshore.eval.table import losses
from longshore.testing import check_metric
from tests.command_line import Command
from tests.eval.runs import CLUSTER_GPUS, finishes, outcome, scenarios
from tests.packages import install

OURS = ["makespan_s", "mean_jct_s", "p99_jct_s", "useful_utilisation", "lost_gpu_s", "restarts"]
THEIRS = """
import numpy as np
from longshore.eval.metrics import Metric

def values(result):
    return result.outcome.wait_s.max(axis=1)

METRIC = Metric(name="longest_wait_s", title="longest wait", quantity="time", better="lower",
                meaning="The longest that a job of a scenario stood in the queue.", place=25, values=values)
MISNAMED = METRIC._replace(name="wait")
ENDLESS = METRIC._replace(name="endless", values=lambda result: np.full(result.scenarios.jobs.size, np.inf))
FEW = METRIC._replace(name="few", values=lambda result: 3.0)
"""


@pytest.mark.parametrize("metric", registered_metrics(), ids=lambda metric: metric.name)
def test_a_metric_is_a_number_for_each_scenario_that_hangs_on_nothing_else(metric: Metric) -> None:
    check_metric(metric)


def test_columns_stand_in_the_order_of_their_places() -> None:
    assert [metric.name for metric in registered_metrics()] == OURS
    assert len({metric.place for metric in registered_metrics()}) == len(OURS)


def with_values(values: Callable[[Result], Any]) -> Metric:
    return registered_metrics()[0]._replace(values=values)


def spoils(result: Result) -> NDArray[np.float64]:
    result.outcome.finish_s[0, 0] = 0.0
    return result.outcome.makespan_s


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (None, "it is NoneType, not a Metric"),
        (registered_metrics()[0]._replace(title=""), "its name, its title or its meaning is empty"),
        (registered_metrics()[0]._replace(meaning="a\nb"), "has more than one line"),
        (registered_metrics()[0]._replace(quantity="kWh"), "its quantity is 'kWh'"),  # type: ignore[arg-type]
        (registered_metrics()[0]._replace(better="more"), "better is 'more'"),  # type: ignore[arg-type]
        (with_values(lambda result: 3.0), "`values` gave float, not an array"),
        (with_values(lambda result: result.scenarios.jobs), "the values are int32, not float64"),
        (with_values(lambda result: result.outcome.finish_s), r"the values have shape \(6, 24\)"),
        (with_values(lambda result: result.outcome.makespan_s * np.nan), "a value is not finite"),
        (with_values(lambda result: result.outcome.makespan_s / result.outcome.makespan_s.max()), "beside it"),
        (with_values(lambda result: result.outcome.finish_s.mean(axis=1)), "columns that only pad change the values"),
    ],
)
def test_the_check_says_what_is_broken(broken: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_metric(broken)


def test_the_check_notices_a_metric_that_changes_what_it_is_given() -> None:
    with pytest.raises(AssertionError, match="it changes what it is given"):
        check_metric(with_values(spoils))


@pytest.fixture
def seventh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with a metric."""
    install(tmp_path / "theirs", monkeypatch, "metrics", {"longest_wait_s": "waits:METRIC"}, waits=THEIRS)


@pytest.mark.full
@pytest.mark.usefixtures("seventh")
def test_a_seventh_metric_appears_in_the_table_the_json_the_report_and_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [*OURS[:2], "longest_wait_s", *OURS[2:]]
    assert [metric.name for metric in registered_metrics()] == names

    written = ["--json", tmp_path / "c.json", "--report", tmp_path / "c.html", "--pictures", tmp_path]
    done = Command(monkeypatch, capsys)("evaluate", "--order", "fifo", "--policy", "pack", "--workloads", "3", *written)
    assert done.status == 0, done.err

    table = done.out.partition("Difference to")
    assert all("longest" in part for part in (table[0], table[2]))  # figures and differences
    policy = json.loads((tmp_path / "c.json").read_text())["policies"]["pack"]
    for part in ("mean", "difference", "relative_percent"):
        assert list(policy[part]) == names
    report = (tmp_path / "c.html").read_text()
    assert "The longest that a job of a scenario stood in the queue. Lower is better." in report
    assert report.count('scope="col">longest wait<small>') == 2  # the table, and every metric against the best
    panels = re.findall(r"<!-- ([^\n]*?)   \(\w+ is better\) -->", (tmp_path / "differences.svg").read_text())
    assert panels == [metric.title for metric in registered_metrics()]


@pytest.mark.usefixtures("seventh")
def test_a_seventh_metric_may_rank_and_may_be_where_a_policy_loses() -> None:
    base = finishes(6)
    runs = {
        "pack": outcome(base)._replace(wait_s=np.full_like(base, 60.0)),
        "ppo": outcome(base * 0.9)._replace(wait_s=np.full_like(base, 90.0)),
    }
    found = compare(runs, scenarios(6), CLUSTER_GPUS, heuristics=["pack"], objective="longest_wait_s")
    assert found.policies == ("pack", "ppo")
    assert found.ranked_by.title == "longest wait"
    assert "Worse in longest wait: +50.0 % [+50.0, +50.0], a clear loss." in losses(found, "ppo")


@pytest.mark.few(2)
@pytest.mark.parametrize("metrics", [1, 3, 4, 6, 7, 12])
def test_every_figure_has_a_panel_for_each_metric(
    metrics: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {f"more_{number}": f"more:M{number}" for number in range(metrics)}
    text = THEIRS + "".join(
        f'M{number} = METRIC._replace(name="more_{number}", title="more {number}")\n' for number in range(metrics)
    )
    install(tmp_path / "theirs", monkeypatch, "metrics", points, more=text)
    runs = {"pack": outcome(finishes(3)), "ppo": outcome(finishes(3, 2))}
    picture = forest(compare(runs, scenarios(3), CLUSTER_GPUS, heuristics=["pack"]))
    shown = re.findall(r"<!-- (more \d+)   \(lower is better\) -->", picture.data.decode())
    assert sorted(shown) == sorted(f"more {number}" for number in range(metrics))


@pytest.mark.parametrize(
    ("point", "value", "says"),
    [
        ("longest_wait", "waits:values", r"metric 'longest_wait' \(waits:values\) is function, not a Metric"),
        ("longest_wait_s", "waits:MISNAMED", "calls itself 'wait'; register it under that name"),
    ],
)
def test_what_is_no_metric_has_no_column(
    point: str, value: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    install(tmp_path / "theirs", monkeypatch, "metrics", {point: value}, waits=THEIRS)
    found = compare({"pack": outcome(finishes(3))}, scenarios(3), CLUSTER_GPUS, heuristics=["pack"])
    assert sorted(metric.name for metric in found.metrics) == sorted(OURS)
    assert re.search(says, caplog.text)
    with pytest.raises(PluginError, match=says):
        metric_of(point)


@pytest.mark.parametrize(
    ("point", "value", "says"),
    [
        ("endless", "waits:ENDLESS", r"metric 'endless' gave float64 of shape \(3,\), expected finite float64"),
        ("few", "waits:FEW", r"metric 'few' gave float64 of shape \(\), expected finite float64 of shape \(3,\)"),
    ],
)
def test_a_metric_that_gives_no_numbers_is_refused(
    point: str, value: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "theirs", monkeypatch, "metrics", {point: value}, waits=THEIRS)
    with pytest.raises(PluginError, match=says):
        compare({"pack": outcome(finishes(3))}, scenarios(3), CLUSTER_GPUS, heuristics=["pack"])


def test_ours_are_registered_under_their_names() -> None:
    assert sorted(OURS) == list(registered("metrics"))
