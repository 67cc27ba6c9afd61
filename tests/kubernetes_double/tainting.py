"""Taints of nodes, and the tolerations of pods."""

from collections.abc import Collection, Sequence

from tests.kubernetes_double.objects import Object


def untolerated(pod: Object, taints: Sequence[Object], effects: Collection[str]) -> list[Object]:
    """Return the taints of such effects that a pod does not tolerate."""
    tolerations = pod["spec"].get("tolerations", [])
    return [taint for taint in taints if taint["effect"] in effects and not _any_tolerates(tolerations, taint)]


def _any_tolerates(tolerations: Sequence[Object], taint: Object) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator", "Equal")
    assert operator in ("Equal", "Exists"), "only what is used is understood"
    same = toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")
    return operator == "Exists" or bool(same)
