"""Environments by name: those of presets, and of a trace and a cluster that users bring.

src/longshore/registration.py registers them with Gymnasium.
"""

from pathlib import Path
from typing import Any

from ...cluster.presets.own import preset_problem, problem_of
from ...cluster.presets.problems import LOAD
from ..batch import POOL
from ..placement import PlacementEnv
from ..vector import PlacementVectorEnv


class PresetEnv(PlacementEnv):
    """Scenarios of a preset of `longshore train`, under its rules; policies estimate fault rates as they do there.

    Args:
        preset: `hetero64`, `hetero64-stream`, `patent4` or `patent64`.
        scenarios: How many are drawn.
        seed: Of the draw.
        order: Order regime.
        options: Further ones of PlacementEnv.

    Raises:
        ValueError: If an option is not known.
    """

    def __init__(
        self, preset: str, *, scenarios: int = POOL, seed: int = 0, order: str = "fifo", **options: Any
    ) -> None:
        super().__init__(preset_problem(preset, scenarios, seed=seed, order=order), **options)


class PresetVectorEnv(PlacementVectorEnv):
    """PresetEnv many times over in one compiled step.

    Args:
        num_envs: Environments.
        preset: As for PresetEnv, and so are the next.
        scenarios: How many are drawn.
        seed: Of the draw.
        order: Order regime.
        options: Further ones of PlacementVectorEnv.

    Raises:
        ValueError: If an option is not known.
    """

    def __init__(
        self, num_envs: int, preset: str, *, scenarios: int = POOL, seed: int = 0, order: str = "fifo", **options: Any
    ) -> None:
        super().__init__(num_envs, preset_problem(preset, scenarios, seed=seed, order=order), **options)


class TraceEnv(PlacementEnv):
    """Windows of a trace on a cluster (`problem_of` in cluster/presets/own.py).

    Args:
        trace: File of the jobs.
        cluster: Cluster file; clusters of the preset `hetero64` if None.
        windows: How many are drawn, one scenario each.
        load: Share of the cluster's GPU-time that arrivals are scaled to offer; None leaves them as they are recorded.
        order: Order regime.
        seed: Of windows and faults.
        options: Further ones of PlacementEnv.

    Raises:
        ValueError: If an option is not known.
        InputError: If a file cannot be used.
    """

    def __init__(
        self, trace: str | Path, cluster: str | Path | None = None, *, windows: int = POOL, load: float | None = LOAD,
        order: str = "fifo", seed: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(problem_of(trace, cluster, windows=windows, load=load, order=order, seed=seed), **options)


class TraceVectorEnv(PlacementVectorEnv):
    """TraceEnv many times over in one compiled step.

    Args:
        num_envs: Environments.
        trace: As for TraceEnv, and so are the next.
        cluster: Cluster file.
        windows: How many are drawn.
        load: What arrivals are scaled to offer.
        order: Order regime.
        seed: Of windows and faults.
        options: Further ones of PlacementVectorEnv.

    Raises:
        ValueError: If an option is not known.
        InputError: If a file cannot be used.
    """

    def __init__(
        self, num_envs: int, trace: str | Path, cluster: str | Path | None = None, *, windows: int = POOL,
        load: float | None = LOAD, order: str = "fifo", seed: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        problem = problem_of(trace, cluster, windows=windows, load=load, order=order, seed=seed)
        super().__init__(num_envs, problem, **options)
