"""Policies by name: heuristics, checkpoints, rollouts, and those that packages register; imported when used."""

import difflib
import re
from pathlib import Path

from ..cluster.files.errors import PluginError
from ..cluster.files.plugins import load, registered
from .protocol import Policy

ROLLOUT, PATIENT = "rollout:", "patient@"
# Of the table in heuristics.py, which commands that only list names do without: it takes Numba.
HEURISTIC_NAMES = (
    "best-of-random", "consolidate", "eft", "eft-hazard", "eft-wait", "fastest", "first-fit", "pack", "pack-hazard",
    "patient", "random", "reliable", "replacement", "spread",
)  # fmt: skip
PATIENT_FACTOR = re.compile(r"\d{1,2}(?:\.\d{1,6})?")  # as in patient@0.8
PATIENT_BASE = re.compile(r"patient@\d(?:\.\d{1,6})?")  # of rollouts without limits: in patient@20 a unit is missing
LIMITS = re.compile(r"(\d+(?:\.\d+)?)ms(?:,h(\d{1,9}))?|h(\d{1,9})")  # of a rollout's decision, as in 20ms,h16


def policy_names() -> list[str]:
    """Return the names of all heuristics and registered policies, in alphabetical order."""
    return sorted({*registered("policies"), *HEURISTIC_NAMES})


def split_rollout(name: str) -> tuple[str, str]:
    """Return the base of rollouts and their limits, empty if they have none; a path may have an '@', too."""
    base = name.removeprefix(ROLLOUT)
    inner, _, limits = base.rpartition("@")
    return (inner, limits) if inner and LIMITS.fullmatch(limits) else (base, "")


def base_policy_name(name: str) -> str:
    """Return the policy that rollouts are made of, or the name itself."""
    while name.startswith(ROLLOUT):
        name, _ = split_rollout(name)
    return name


def _check_no_limits(name: str, base: str) -> None:
    """Refuse what stands behind the '@' of rollouts and neither is limits nor belongs to the name of the base.

    Raises:
        PluginError: If that is so.
    """
    is_path_or_rollout = base.endswith(".zip") or base.startswith(ROLLOUT)
    if "@" in base and not is_path_or_rollout and not PATIENT_BASE.fullmatch(base) and base not in policy_names():
        raise PluginError(
            f"{name!r} has no limits after '@'; write a time for each decision as in rollout:patient@20ms, the "
            "number of jobs that a try starts as in rollout:NAME.zip@h16, or both as in rollout:NAME.zip@20ms,h16"
        )


def _find_rollout(name: str) -> Policy:
    from .rollouts import rollout_of

    base, text = split_rollout(name)
    limits = LIMITS.fullmatch(text)
    if limits is None:
        _check_no_limits(name, base)
        return rollout_of(find_policy(base))
    ms, horizon = limits[1], limits[2] or limits[3]
    return rollout_of(find_policy(base), float(ms) if ms else None, int(horizon) if horizon else None)


def _find_patient(name: str) -> Policy:
    from .heuristics import patient_with_factor

    text = name.removeprefix(PATIENT)
    if PATIENT_FACTOR.fullmatch(text) is None or float(text) == 0.0:
        raise PluginError(f"{name!r} has no factor after '@'; write a number as in patient@0.8")
    return patient_with_factor(float(text))


def checkpoint_in(name: str) -> Path | None:
    """Return the checkpoint in the name of a policy, alone or as the base of rollouts; None if there is none."""
    base = base_policy_name(name)
    return Path(base) if base.endswith(".zip") else None


def check_policy_name(name: str) -> None:
    """Refuse an unknown name. Nothing is loaded: errors in a checkpoint show when it is.

    Raises:
        PluginError: If there is no policy of that name.
    """
    if name.startswith(ROLLOUT):
        base, limits = split_rollout(name)
        if not limits:
            _check_no_limits(name, base)
        return check_policy_name(base)
    if name.startswith(PATIENT) or name.endswith(".zip") or name in policy_names():
        return None
    if Path(name).is_dir():
        raise PluginError(
            f"{name} is a folder; a learned policy is named by its checkpoint, such as {Path(name) / 'NAME.zip'}"
        )
    close = difflib.get_close_matches(name, policy_names(), n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`longshore policy list` lists them"
    raise PluginError(f"there is no policy {name!r}; {hint}, and a learned one is named by its checkpoint (NAME.zip)")


def find_policy(name: str) -> Policy:
    """Return a policy by its registered name, or from a checkpoint by its path, or rollouts of either.

    `patient@0.8` is `patient` with that factor.

    `rollout:NAME` are rollouts of a policy; `rollout:NAME@20ms` takes at most 20 ms for a decision,
    `rollout:NAME@h16` ends each try after 16 jobs, and `rollout:NAME@20ms,h16` does both.

    Raises:
        PluginError: If nothing of that name is registered, or what is registered is no policy.
        CheckpointError: If the checkpoint is damaged or was made for another version.
    """
    if name.startswith(ROLLOUT):
        return _find_rollout(name)
    if name.startswith(PATIENT):
        return _find_patient(name)
    if name.endswith(".zip"):
        from .learned.checkpoint import load_policy  # torch is imported only where a network is used

        return load_policy(Path(name))
    if name in HEURISTIC_NAMES:
        from .heuristics import HEURISTICS

        return HEURISTICS[name]
    check_policy_name(name)
    found = load("policies", name)
    policy = found() if isinstance(found, type) else found
    if not isinstance(policy, Policy):
        missing = [part for part in ("name", "about", "waits", "place", "run") if not hasattr(policy, part)]
        where = registered("policies")[name].value
        raise PluginError(f"policy {name!r} ({where}) lacks part of the policy protocol: {', '.join(missing)}")
    return policy
