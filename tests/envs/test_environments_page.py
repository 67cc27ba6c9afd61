"""The examples of docs/environments.md work as described."""

import re
import runpy
from pathlib import Path

import pytest

from longshore.cluster.state.state import MAX_CANDIDATES
from longshore.envs.batch import REWARDS, AgentView, Batch, episode_summaries
from longshore.envs.layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS, GLOBALS, GPU_FEATURES, NODE_FEATURES
from tests.envs.random_run import small_problem, trace_in

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
_, *EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)  # the first: test_researchers_page.py
CLUSTER = PAGE.parents[1] / "examples" / "small.yaml"


@pytest.mark.parametrize("example", EXAMPLES, ids=["own", "gymnasium", "sb3", "predict", "batched"])
def test_an_example_of_the_page_runs(example: str, tmp_path: Path) -> None:
    example = example.replace("jobs.csv", str(trace_in(tmp_path))).replace("cluster.yaml", str(CLUSTER))
    (tmp_path / "example.py").write_text(example)
    runpy.run_path(str(tmp_path / "example.py"))


def test_the_page_counts_features_and_names_rewards_and_metrics() -> None:
    batch = Batch(small_problem(), AgentView(), 1)
    batch.reset()
    page = PAGE.read_text()
    assert f"{len(GLOBALS)} numbers" in page
    assert f"then {len(NODE_FEATURES)} for each node" in page
    assert f"or {len(GPU_FEATURES)} for each GPU" in page
    assert (
        f"{len(CANDIDATE_GLOBALS)} numbers of the decision as a whole, then {len(CANDIDATE_FEATURES)} for each" in page
    )
    assert f"`Discrete({MAX_CANDIDATES})`" in page
    names = [*REWARDS, *episode_summaries(batch, batch.steps * 0)[0]]
    assert [name for name in names if f"`{name}`" not in page] == []
