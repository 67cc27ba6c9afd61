"""Contract tests for what other packages add: a policy, a trace format and the like. Ours pass the same ones.

Each function raises AssertionError with what is broken. None needs pytest.
"""

from .backends import check_backend
from .detectors import check_detector
from .faults import check_fault_model
from .metrics import check_metric
from .networks import check_network
from .orders import check_order
from .pages import check_page
from .policies import check_policy
from .rewards import check_reward
from .traces import check_trace_format

__all__ = [
    "check_backend",
    "check_detector",
    "check_fault_model",
    "check_metric",
    "check_network",
    "check_order",
    "check_page",
    "check_policy",
    "check_reward",
    "check_trace_format",
]
