"""Contract tests for what other packages add: a policy, a trace format and the like. Ours pass the same ones.

Each function raises AssertionError with what is broken. None needs pytest. Each is imported when it is used: that
of a network imports PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backends import check_backend
    from .checks import check_preflight_check
    from .networks import check_network
    from .policies import check_policy
    from .traces_and_rewards import check_reward, check_trace_format

__all__ = [
    "check_backend",
    "check_network",
    "check_policy",
    "check_preflight_check",
    "check_reward",
    "check_trace_format",
]
_MODULES = {
    "check_backend": "backends",
    "check_network": "networks",
    "check_policy": "policies",
    "check_preflight_check": "checks",
    "check_reward": "traces_and_rewards",
    "check_trace_format": "traces_and_rewards",
}


def __getattr__(name: str) -> Any:
    """Import a check."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
