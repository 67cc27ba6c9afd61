"""What a policy is run on: scenarios of a cluster, with faults and rules."""

from dataclasses import dataclass

from .scenarios import FaultProcess, Rules, Scenarios
from .topology import Cluster


@dataclass(frozen=True, slots=True)
class Problem:
    """What environments play: scenarios of a cluster, with faults and rules. Waiting is part of the rules."""

    cluster: Cluster
    scenarios: Scenarios
    process: FaultProcess
    rules: Rules
