"""The first rank decides, whatever the plugins of kube-scheduler say."""

from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.extender.wire import RANKED_NODES, prioritize_reply
from tests.scheduler.extender.kube_scheduler import DEFAULT_WEIGHTS, MOST_NODE_SCORE, total
from tests.scheduler.extender.serving import ROOT

CONFIGURATION = yaml.safe_load((ROOT / "deploy" / "extender" / "scheduler.yaml").read_text())
[EXTENDER] = CONFIGURATION["extenders"]
HOSTS = [f"node-{number}" for number in range(6)]
PLUGINS = st.fixed_dictionaries({name: st.integers(0, MOST_NODE_SCORE) for name in DEFAULT_WEIGHTS})


@given(st.permutations(HOSTS), st.integers(1, RANKED_NODES), st.lists(PLUGINS, min_size=6, max_size=6))
def test_a_pod_goes_to_the_first_rank_whatever_the_plugins_of_kube_scheduler_say(
    order: list[str], ranked: int, plugins: list[dict[str, int]]
) -> None:
    ours = {str(each["Host"]): int(str(each["Score"])) for each in prioritize_reply(HOSTS, order[:ranked])}
    totals = {
        host: total(ours[host], EXTENDER["weight"], scores) for host, scores in zip(HOSTS, plugins, strict=True)
    }  # fmt: skip
    assert max(totals, key=totals.__getitem__) == order[0]
    assert sum(value == totals[order[0]] for value in totals.values()) == 1


def test_the_page_says_what_the_sum_is() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"`weight: {EXTENDER['weight']}`" in page
    assert f"{MOST_NODE_SCORE * sum(DEFAULT_WEIGHTS.values()):,} in all" in page


def test_both_containers_have_a_share_of_a_busy_node() -> None:
    path = Path(ROOT / "deploy" / "extender" / "deployment.yaml")
    [deployment] = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "Deployment"]
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        assert container["resources"]["requests"]["cpu"]
