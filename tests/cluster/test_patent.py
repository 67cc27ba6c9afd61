"""The presets of the patent's setting against their definition."""

import numpy as np
import pytest

from longshore.cluster.model.problem import ORDERS
from longshore.cluster.presets.drawn import hetero64, patent


@pytest.mark.parametrize(("gpus", "jobs"), [(4, 16), (64, 64)])
def test_gpus_differ_by_their_faults_alone_over_two_decades(gpus: int, jobs: int) -> None:
    cluster, drawn, _, rules = patent(50, 1, gpus=gpus)
    hours = np.sort(1.0 / drawn.hazard_per_s, axis=1) / 3600.0
    assert hours == pytest.approx(np.broadcast_to(np.geomspace(60.0, 6000.0, gpus), (50, gpus)))
    assert np.array_equal(drawn.source_rate_per_s[:, :gpus], drawn.hazard_per_s)
    assert not drawn.source_rate_per_s[:, gpus:].any()
    assert (drawn.hazard_per_s == drawn.hazard_per_s[0]).all()
    assert (drawn.speed == 1.0).all()
    assert (cluster.gpu_node.size, cluster.speed.size, drawn.gpus.shape) == (gpus, gpus, (50, jobs))
    assert (rules.ring, rules.node_penalty, rules.order, rules.waiting) == (False, 0.0, ORDERS["fifo"], False)


def test_jobs_are_those_of_hetero64_that_ask_half_of_the_gpus_at_most() -> None:
    for gpus, shares in ((4, [2 / 3, 1 / 3]), (64, [0.30, 0.15, 0.20, 0.18, 0.11, 0.06])):
        asked = patent(4000, 1, gpus=gpus)[1].gpus
        assert np.unique(asked, return_counts=True)[1] / asked.size == pytest.approx(shares, abs=0.006)
        assert np.unique(asked).max() == gpus // 2
    log_h, theirs = (np.log(drawn.work_s / 3600.0) for drawn in (patent(2000, 1, gpus=64)[1], hetero64(2000, 1)[1]))
    assert (log_h.mean(), log_h.std()) == pytest.approx((theirs.mean(), theirs.std()), rel=0.01)


def test_a_scenario_of_the_patent_does_not_depend_on_how_many_are_drawn_with_it() -> None:
    alone, among = patent(2, 7, gpus=4, first=3)[1], patent(6, 7, gpus=4)[1]
    assert all(np.array_equal(rows, getattr(among, field)[3:5]) for field, rows in alone._asdict().items())


@pytest.mark.parametrize("wrong", [{"scenarios": 0}, {"seed": -1}, {"first": -1}, {"gpus": 8}])
def test_other_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        patent(**{"scenarios": 1, "seed": 0, "gpus": 4} | wrong)
