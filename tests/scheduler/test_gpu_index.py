"""Names of GPUs in the order of the cluster file, and which node types suit whom."""

import pytest

from longshore.cluster.model.topology import NodeNeeds, NodeOffer
from longshore.scheduler.model.gpu_index import Layout


def test_a_node_of_a_type_that_offers_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nodes are of others"):
        Layout(["a", "b"], [2, 2], [0, 1])


def test_gpus_of_all_types_count_for_a_job_that_needs_nothing() -> None:
    layout = Layout(["a", "b"], [2, 3], [0, 1], [NodeOffer("small"), NodeOffer("large")])
    assert layout.gpus_for(NodeNeeds()) == layout.gpus == 5
