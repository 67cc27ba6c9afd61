"""What plans save over one fixed layout: jobs of real traces, with models that we attach.

Windows of 96 jobs that share none, at a load of 0.85, on examples/small.yaml: 64 GPUs of two types in two racks, with
its faults. Traces do not name models. Each job gets one of examples/plan/models.yaml, and takes as long as its trace
says when it is trained data parallel on the GPUs that it asks for (`longshore trace plan`). With the best plan it has
the fewest GPUs that end as soon and cost no more GPU-time; with offload that may be a plan that puts state away. All
meet the same arrivals and faults, under EASY with `pack` and exact estimates. Intervals are by a bootstrap of windows.
Rows of single traces are for information.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import BEST, FIXED, OFFLOAD, with_layout
from longshore.cluster.model.workload import Workload, with_gpus_cut
from longshore.cluster.presets.cluster_file import ClusterSetup, read_cluster
from longshore.cluster.presets.problems import LOAD, Regime, capacity_of, cluster_problem, draw_windows, evaluation_key
from longshore.cluster.traces.read import read_trace
from longshore.eval.asides import LayoutComparison, LayoutFigures, compare_layouts, layout_comparison
from longshore.planner.hardware import DEFAULT
from longshore.planner.jobs import PlanTables, attach_plans, read_models

from .harness import ROOT, Row, main, progress

DATA = ROOT / "../shared/data/traces"
TRACES = ("itp_cluster01", "itp_cluster03", "philly_vc_2869ce.muri", "philly_vc_7f04ca.muri", "philly_vc_ee9e8c.muri")
CLUSTER, MODELS = ROOT / "examples/small.yaml", ROOT / "examples/plan/models.yaml"
SEED, WINDOWS, RUNS = 2026, 24, 4
DRAWS = 4  # of models, beside the one of which rows are shown
POLICY = "pack"


@cache
def setup() -> ClusterSetup:
    """Return the cluster."""
    return read_cluster(CLUSTER)


@cache
def tables(most_gpus: int) -> PlanTables:
    """Return the plans of all models on the cluster."""
    return PlanTables(setup(), DEFAULT, most_gpus)


def planned(path: Path, seed: int = SEED) -> Workload:
    """Return the jobs of a trace with models and plans; the seed draws the models."""
    most = setup().cluster.gpu_node.size * 3 // 4
    jobs = with_gpus_cut(read_trace(path), most)
    return attach_plans(jobs, read_models(MODELS), tables(most), seed)[0]


def compare(
    workload: Workload, before: str = FIXED, after: str = BEST, *, runs: int = RUNS, windows: int = WINDOWS
) -> LayoutComparison:
    """Return what one layout of the jobs of a trace saves against another."""
    cluster, key = setup().cluster, evaluation_key(SEED)
    cut = draw_windows(
        workload, windows, part=(0.0, 1.0), seed=key, load=LOAD, max_gpus=cluster.gpu_node.size,
        capacity=capacity_of(cluster), disjoint=True,
    )  # fmt: skip
    problems = {
        layout: cluster_problem(
            setup(), [with_layout(it, layout) for it in cut], Regime(order="easy"), runs=runs, seed=key
        )
        for layout in (before, after)
    }
    found = compare_layouts(problems, HEURISTICS[POLICY], before, after)
    assert found is not None, "jobs had not ended at the cut"
    return found


def pooled(parts: list[LayoutComparison]) -> LayoutComparison:
    """Return what is saved on all traces, of which each window is a unit."""
    layouts = {
        name: LayoutFigures(*map(np.concatenate, zip(*(part.layouts[name] for part in parts), strict=True)))
        for name in parts[0].layouts
    }
    units = [np.unique(part.unit).size for part in parts]
    first = np.cumsum([0, *units[:-1]])
    unit = np.concatenate([part.unit + begin for part, begin in zip(parts, first, strict=True)])
    return layout_comparison(
        POLICY, layouts, unit, jobs=sum(part.jobs for part in parts), planned=sum(part.planned for part in parts),
        changed=sum(part.changed for part in parts),
    )  # fmt: skip


def measure() -> Iterator[Row]:
    """Compare both layouts on each trace, and on all of them."""
    if not DATA.is_dir():
        progress("the traces in ../shared/data/traces are absent: nothing is measured")
        return
    parts, putting_away = [], []
    for name in TRACES:
        progress(f"planning and running {name}")
        jobs = planned(DATA / f"{name}.csv")
        parts.append(compare(jobs))
        putting_away.append(compare(jobs, BEST, OFFLOAD))
        yield from rows(name.removesuffix(".muri"), parts[-1], most=None)
    yield from rows("all", pooled(parts), most=0.0)
    yield from rows("all, with offload against without", pooled(putting_away), most=None)
    changes = []
    for seed in range(SEED + 1, SEED + 1 + DRAWS):
        progress(f"models drawn with seed {seed}")
        again = pooled([compare(planned(DATA / f"{name}.csv", seed)) for name in TRACES])
        changes.append([float(again.percent[figure].value[0]) for figure in ("mean_jct_s", "held_gpu_s")])
    for title, column in zip(("mean JCT", "GPU-hours held"), zip(*changes, strict=True), strict=True):
        yield Row(f"all, {DRAWS} other draws of models: {title}, most saved", min(column), "%")
        yield Row(f"all, {DRAWS} other draws of models: {title}, least saved", max(column), "%", most=0.0)


def rows(name: str, found: LayoutComparison, *, most: float | None) -> Iterator[Row]:
    """Yield how the best plans change JCT and GPU-hours."""
    yield Row(f"{name}: windows", np.unique(found.unit).size, "")
    yield Row(f"{name}: jobs with plans", 100.0 * found.planned / found.jobs, "%")
    yield Row(f"{name}: jobs that run by another plan", 100.0 * found.changed / found.jobs, "%")
    titles = {"mean_jct_s": "mean JCT", "held_gpu_s": "GPU-hours held", "planned_gpu_s": "GPU-hours without faults"}
    for figure, title in titles.items():
        value, low, high = (float(end[0]) for end in found.percent[figure])
        yield Row(f"{name}: {title}, change", value, "%")
        yield Row(f"{name}: {title}, low end", low, "%")
        # Without faults, no plan that is chosen costs more: what is measured is what that does to a shared cluster.
        yield Row(f"{name}: {title}, high end", high, "%", most=None if figure == "planned_gpu_s" else most)


if __name__ == "__main__":
    main(measure)
