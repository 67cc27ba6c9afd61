"""The environments that Gymnasium knows by name after `import longshore`, which does not import Gymnasium.

Gymnasium has no entry points for environments: an import must register them. So they are registered now if Gymnasium
has been imported, else at the end of its import.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

GYMNASIUM = "gymnasium"
SINGLE, BATCHED = "longshore.envs.gymnasium_envs:PlacementEnv", "longshore.envs.gymnasium_envs:PlacementVectorEnv"
PRESET, PRESETS = "longshore.envs.gymnasium_envs:PresetEnv", "longshore.envs.gymnasium_envs:PresetVectorEnv"
TRACE, TRACES = "longshore.envs.gymnasium_envs:TraceEnv", "longshore.envs.gymnasium_envs:TraceVectorEnv"
# SPEC R2, R4 and R5 to the letter
PATENT: dict[str, Any] = {"action": "gpu", "observation": "patent-literal", "reward": "best_of_random"}

ENVIRONMENTS: dict[str, tuple[str, str, dict[str, Any]]] = {  # class, batched class and options of each
    "longshore/Placement-v0": (SINGLE, BATCHED, {}),
    "longshore/Hetero64-v0": (PRESET, PRESETS, {"preset": "hetero64"}),
    "longshore/Hetero64Stream-v0": (PRESET, PRESETS, {"preset": "hetero64-stream", "reward": "jct"}),
    "longshore/Patent4-v0": (PRESET, PRESETS, {"preset": "patent4", **PATENT}),
    "longshore/Patent64-v0": (PRESET, PRESETS, {"preset": "patent64", **PATENT}),
    "longshore/Trace-v0": (TRACE, TRACES, {"reward": "jct"}),
}


def register_with_gymnasium() -> None:
    """Register all environments, at once or when Gymnasium is imported."""
    if hasattr(sys.modules.get(GYMNASIUM), "register"):
        _register_all()
    elif not any(isinstance(finder, _RegisterAfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RegisterAfterImport())


def _register_all() -> None:
    from gymnasium.envs.registration import register, registry

    for name, (single, batched, options) in ENVIRONMENTS.items():
        if name not in registry:
            register(id=name, entry_point=single, vector_entry_point=batched, kwargs=options)


class _RegisterAfterImport(MetaPathFinder):
    """Finds Gymnasium as it is found without it, and has the environments registered when its import ends.

    Code that only checks whether Gymnasium is installed changes nothing.
    """

    searches = False  # whether it searches the other finders itself

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how Gymnasium is loaded; None for all else, which others find."""
        del path, target
        if fullname != GYMNASIUM or self.searches:
            return None
        self.searches = True
        try:
            spec = find_spec(GYMNASIUM)
        finally:
            self.searches = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register_all()
                if self in sys.meta_path:
                    sys.meta_path.remove(self)

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
