"""What a policy is run on: scenarios of a cluster, with faults and rules."""

from typing import NamedTuple

from .scenarios import FaultProcess, Rules, Scenarios
from .topology import Cluster


class Problem(NamedTuple):
    """What environments run: scenarios of a cluster, with faults and rules. Waiting is part of the rules."""

    cluster: Cluster
    scenarios: Scenarios
    process: FaultProcess
    rules: Rules
