"""Training on traces of users: which windows, how they are mixed, and what is reported at the end."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import FACTORS, HEURISTICS, PATIENT, patient_with_factor
from longshore.agents.registry import find_policy
from longshore.cluster.files.errors import InputError
from longshore.cluster.model.outcome import weighting_of
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.presets.problems import Regime
from longshore.cluster.simulator.simulation import simulation_of
from longshore.training.problems import LOADS, OTHER_CLUSTERS, ProblemRequest, Problems, trace_problems
from longshore.training.validation import (
    LaterComparison,
    best_order_and_heuristic,
    compare_on_later_windows,
    recommendation,
    run_for_costs,
)
from tests.command_line import Command
from tests.envs.random_run import small_problem
from tests.training.smaller import trace, with_few_draws, with_few_windows, with_small_groups

REGIMES = (Regime("easy", waiting=True), Regime("shortest", 3600.0, waiting=True))  # fault rates are estimated
CLUSTER = """
node_types:
  old: {gpus: 4, peak_flops: 1e14, memory_bytes: 1e9}
  new: {gpus: 4, peak_flops: 2e14, memory_bytes: 1e9}
racks: [{nodes: [{type: old, count: 2}, {type: new, count: 2}]}]
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> ProblemRequest:
    folder = tmp_path_factory.mktemp("traces")
    return ProblemRequest(3, REGIMES, traces=tuple(trace(folder / f"t{seed}.csv", seed) for seed in (1, 2)))


@pytest.fixture(scope="module")
def drawn(given: ProblemRequest) -> Problems:
    """All windows: what is of a module is made before what is of a test."""
    return trace_problems(given)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    with_few_draws(monkeypatch)


@pytest.fixture
def few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    with_few_windows(monkeypatch)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    with_small_groups(monkeypatch)


@pytest.mark.full
def test_training_and_validation_share_no_job_and_take_every_trace_load_and_regime(drawn: Problems) -> None:
    trained, validated = drawn
    assert {it.rules.order for it in trained} == {ORDERS["easy"], ORDERS["shortest"]}
    assert [it.rules.order for it in validated] == [ORDERS["easy"], ORDERS["shortest"]]
    works = [set(np.unique(it.scenarios.work_s)) - {0.0} for it in (*trained, validated[0])]
    assert not set().union(*works[:-1]) & works[-1]
    scenarios = trained[0].scenarios
    span_s = scenarios.submit_s.max(axis=1)
    loads = (scenarios.gpus * scenarios.work_s).sum(axis=1) / span_s / 112.0
    assert {round(float(load), 6) for load in loads} == set(LOADS)


@pytest.mark.few(1)
@pytest.mark.usefixtures("few_windows")
@pytest.mark.parametrize("orders", [1, 2])
def test_clusters_of_other_sizes_are_trained_on_too_if_none_is_given(
    given: ProblemRequest, drawn: Problems, orders: int
) -> None:
    trained, validated = drawn if orders == len(REGIMES) else trace_problems(given._replace(regimes=REGIMES[:orders]))
    gpus = [problem.cluster.gpu_node.size for problem in trained]
    assert gpus[:orders] == [64] * orders  # others come behind: what learns from one problem learns from the first
    assert sorted(gpus[orders:]) == sorted(other.gpus for other in OTHER_CLUSTERS)
    assert {problem.cluster.gpu_node.size for problem in validated} == {64}


def test_known_run_times_are_mixed_unless_one_kind_is_requested(
    given: ProblemRequest, drawn: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios = drawn.trained[0].scenarios
    exact = (scenarios.work_s == scenarios.estimate_s).all(axis=1)
    assert 0.1 < exact.mean() < 0.9
    with_few_windows(monkeypatch)
    alike = trace_problems(given._replace(estimates="exact"))[0][0].scenarios
    assert (alike.work_s == alike.estimate_s).all()


@pytest.mark.usefixtures("few_windows")
def test_windows_run_on_the_cluster_file_that_is_given(given: ProblemRequest, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    trained, validated = trace_problems(given._replace(cluster=tmp_path / "c.yaml"))
    for problem in (*trained, *validated):
        assert problem.cluster.gpu_node.size == 16
        assert problem.scenarios.gpus.max() <= 12


@pytest.mark.full
def test_jobs_of_every_trace_and_load_keep_the_node_types_that_suit_them(given: ProblemRequest, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    types = {"a.csv": ("new", "", "old"), "b.csv": ("old", "new")}  # whose classes are met in another order
    for name, of in types.items():
        rows = [f"j{job},1,{1000 + job},{job * 100},{of[job % len(of)]}" for job in range(400)]
        (tmp_path / name).write_text("\n".join(["id,gpus,work_s,submit_s,gpu_types", *rows]) + "\n")
    trained, _ = trace_problems(
        given._replace(cluster=tmp_path / "c.yaml", traces=tuple(tmp_path / it for it in types))
    )
    suits, drawn = trained[0].cluster.suits, trained[0].scenarios
    wanted = {"new": [0, 0, 1, 1], "old": [1, 1, 0, 0], "": [1, 1, 1, 1]}
    of_first = drawn.work_s.shape[0] // 2
    for row in range(0, drawn.work_s.shape[0], 97):
        of = types["a.csv" if row < of_first else "b.csv"]
        for job in range(drawn.jobs[row]):
            own = of[int(drawn.work_s[row, job] - 1000) % len(of)]
            assert suits[drawn.needs[row, job]].tolist() == wanted[own]


def test_a_trace_that_is_too_short_for_parts_is_refused(tmp_path: Path) -> None:
    short = trace(tmp_path / "short.csv", 0, jobs=100)
    with pytest.raises(InputError, match="too few") as caught:
        trace_problems(ProblemRequest(0, REGIMES, traces=(short,)))
    assert caught.value.field == "--trace"


@pytest.mark.full
@pytest.mark.usefixtures("few_draws")
def test_patient_itself_is_no_better_than_patient_tuned(given: ProblemRequest) -> None:
    found = compare_on_later_windows(given, HEURISTICS["patient"])
    assert [it.where for it in found] == [
        "t1.csv, easy", "t1.csv, shortest", "t2.csv, easy", "t2.csv, shortest", "all of these",
    ]  # fmt: skip
    assert found[-1].windows == sum(it.windows for it in found[:-1])
    for it in found[:-1]:
        same = compare_on_later_windows(
            given._replace(traces=given.traces[:1], regimes=REGIMES[:1]), replace(PATIENT, patience=it.factor)
        )
        assert it.factor in FACTORS
        if it is found[0]:
            assert same[0].percent == pytest.approx(0.0, abs=1e-9)
            assert "not shown to be better" in recommendation(same)


@pytest.mark.full
@pytest.mark.usefixtures("few_draws")
def test_by_an_objective_a_policy_is_also_compared_with_the_best_order_and_heuristic(given: ProblemRequest) -> None:
    """The best of the past itself, under its own order, is as good as that rival on every later window."""
    alone, by = given._replace(traces=given.traces[:1]), weighting_of("slowdown")
    found = compare_on_later_windows(alone._replace(regimes=REGIMES[:1]), HEURISTICS["pack"], by)
    assert [bool(it.rival) for it in found] == [False, True]
    assert found[0].where == found[1].where == "t1.csv, easy"
    order, _, name = found[1].rival.partition(" + ")
    assert f"against {order} + {name}: " in found[1].text
    own = alone._replace(regimes=(replace(REGIMES[0], order=order),))
    assert compare_on_later_windows(own, find_policy(name), by)[1].percent == pytest.approx(0.0, abs=1e-9)


@pytest.mark.full
def test_the_best_pair_is_the_least_of_all_by_the_requested_objective() -> None:
    problem = small_problem(4, waiting=True)
    for text in ("p99-jct", "mean-jct:0.5,slowdown:0.5"):
        by = weighting_of(text)
        cost = {}
        for order in ORDERS:
            ruled = problem._replace(rules=problem.rules._replace(order=ORDERS[order]))
            for policy in (*HEURISTICS.values(), *map(patient_with_factor, FACTORS)):
                sim = simulation_of(ruled, rows=4)
                cost[f"{order} + {policy.name}"] = float(np.log(run_for_costs(sim, policy, ruled, by)).mean())
        found = str(best_order_and_heuristic(problem, by))
        assert cost[found] == min(cost.values())


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-5.0, -1.0, "The p99 JCT is 3.0 % lower than under easy + eft: run this policy"),
        (-5.0, 1.0, "not shown to be better than easy + eft"),
        (1.0, 3.0, "It is 2.0 % worse than easy + eft"),
    ],
)
def test_the_verdict_by_an_objective_names_the_best_rival(low: float, high: float, expected: str) -> None:
    last = LaterComparison("t", 9, (low + high) / 2.0, low, high, np.nan, "easy + eft")
    assert expected in recommendation((LaterComparison("t", 9, -9.0, -10.0, -8.0, 0.4), last), weighting_of("p99-jct"))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-5.0, -1.0, "run this policy"), (-5.0, 1.0, "not shown"), (1.0, 2.0, "worse"), (np.nan, np.nan, "not shown")],
)
def test_the_verdict_follows_the_interval(low: float, high: float, expected: str) -> None:
    assert expected in recommendation((LaterComparison("t", 9, (low + high) / 2.0, low, high, 0.4),))


@pytest.mark.usefixtures("few_draws", "few_windows", "small_groups")
def test_train_reports_its_gain_and_continues_where_it_stopped(
    given: ProblemRequest, tmp_path: Path, longshore: Command
) -> None:
    (tmp_path / "mine.yaml").write_text(CLUSTER)
    traces = [word for path in given.traces for word in ("--trace", path)]
    line = (*traces, "--cluster", tmp_path / "mine.yaml", "--steps", "3000", "--threads", "1", "--load", "0.8")
    done = longshore("train", *line, "--order", "easy", "--order", "shortest", "--ageing", "72h", "--logdir", tmp_path)
    assert done.status == 0, done.err
    (folder,) = tmp_path.glob("traces-t1-t2-mine-group-wait-easy-shortest-age72h-0")
    assert (folder / "later.json").exists()
    assert "all of these" in done.out
    assert "run" in done.out.splitlines()[-1]
    again = longshore("train", *line, "--order", "easy", "--order", "shortest", "--ageing", "72h", "--logdir", tmp_path)
    assert again.out.splitlines()[-4:] == done.out.splitlines()[-4:]


@pytest.mark.full
@pytest.mark.usefixtures("few_draws", "few_windows", "small_groups")
def test_train_by_an_objective_reports_it_and_continues_by_the_same_command(
    given: ProblemRequest, tmp_path: Path, longshore: Command
) -> None:
    (tmp_path / "mine.yaml").write_text(CLUSTER)
    line = ("train", "--trace", given.traces[0], "--cluster", tmp_path / "mine.yaml", "--steps", "2000",
            "--threads", "1", "--load", "0.8", "--logdir", tmp_path)  # fmt: skip
    by = ("--objective", "slowdown:3,p99-jct:1")
    done = longshore(*line, *by)
    assert done.status == 0, done.err
    (folder,) = tmp_path.glob("traces-t1-mine-group-wait-shortest-p99-jct1-slowdown3-0")
    assert (
        "Weighted objective against `patient`, tuned, and the best order and heuristic for it on the last" in done.out
    )
    assert [it.get("rival", "") != "" for it in json.loads((folder / "later.json").read_text())] == [False, True]
    assert longshore(*line, *by).out.splitlines()[-3:] == done.out.splitlines()[-3:]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--objective", "p99-jtc"), "--objective: there is no objective 'p99-jtc'; did you mean 'p99-jct'?"),
        (
            ("--objective", "slowdown", "--algo", "ppo", "--action", "node", "--network", "set"),
            "ppo minimises what its reward pays",
        ),
        (("--objective", "slowdown", "--algo", "distil"), "distil minimises the makespan of a batch, else the mean"),
    ],
)
def test_an_objective_that_cannot_be_had_is_refused_in_one_line(
    options: tuple[str, ...], expected: str, given: ProblemRequest, tmp_path: Path, longshore: Command
) -> None:
    done = longshore("train", "--trace", given.traces[0], "--logdir", tmp_path, *options)
    assert done.status == 2
    assert expected in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
