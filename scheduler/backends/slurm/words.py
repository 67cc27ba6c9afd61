"""The words in which Slurm describes its nodes: generic resources (GRES) and states.

Source: Slurm's manual pages sinfo(1), scontrol(1) and gres.conf(5).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# What may stand for a state, and how it is called here. Fields that are narrow have the short forms.
_SHORT = {
    "ALLOC": "ALLOCATED", "COMP": "COMPLETING", "DRAIN": "DRAINED", "DRNG": "DRAINING", "FAILG": "FAILING",
    "FUTR": "FUTURE", "MAINTENANCE": "MAINT", "MIX": "MIXED", "NO_RESP": "NOT_RESPONDING",
    "NO_RESPOND": "NOT_RESPONDING", "NPC": "PERFCTRS", "PLND": "PLANNED", "POW_DN": "POWERING_DOWN",
    "POW_UP": "POWERING_UP", "REBOOT": "REBOOT_REQUESTED", "RESV": "RESERVED", "UNK": "UNKNOWN", "BOOT": "POWERING_UP",
    "INVALID_REG": "INVAL", "INVALID": "INVAL", "BLOCK": "BLOCKED",
}  # fmt: skip
_SUFFIXES = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
    "$": "MAINT", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED", "+": "COMPLETING",
}  # fmt: skip
_TAKES_JOBS = frozenset(
    ("ALLOCATED", "COMPLETING", "IDLE", "MIXED", "PLANNED", "POWERED_DOWN", "POWERING_UP", "RESERVED", "UNKNOWN")
)  # fmt: skip
# With one of these a node takes no further job. One that is powered down does: Slurm boots it for a job.
_TAKES_NONE = frozenset(
    ("BLOCKED", "DOWN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "MAINT", "PERFCTRS",
     "POWER_DOWN", "POWERING_DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED")
)  # fmt: skip
_COUNT = re.compile(r"([0-9]+)([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_NOTHING = ("", "none", "n/a", "null")


class NodeState(NamedTuple):
    """The state of a node: what it does, and what is true of it besides, in long words and capital letters."""

    base: str
    flags: frozenset[str] = frozenset()

    @property
    def takes_jobs(self) -> bool:
        """Whether Slurm starts further jobs there. Of a state that is not known here it is not expected."""
        return self.base in _TAKES_JOBS and not self.flags & _TAKES_NONE


@dataclass(frozen=True, slots=True)
class Gres:
    """A generic resource of a node."""

    name: str
    type: str  # "" if it has none
    count: int


def state_of(text: str) -> NodeState:
    """Return what a state means.

    Args:
        text: As `sinfo` has it, such as `down*` or `mixed-`, or as `scontrol` has it, such as `IDLE+CLOUD+DRAIN`.
    """
    words, suffixes = list[str](), set[str]()
    for word in text.strip().upper().split("+"):
        bare = word.rstrip("".join(_SUFFIXES))  # older ones have them behind the first word, as in `DOWN*+DRAIN`
        words.append(_SHORT.get(bare, bare))
        suffixes |= {_SUFFIXES[it] for it in word[len(bare) :]}
    base, *flags = words
    return NodeState(base, frozenset(flags) | suffixes)


def gres_of_node(text: str) -> Iterator[Gres]:
    """Yield the resources of a node.

    Args:
        text: As Slurm has it: names with an optional type, an optional count and remarks in brackets, such as
            `gpu:a100:4(S:0-1),shard:16,gpumem:160G`. `(null)` is none.
    """
    for part in _without_brackets(text).split(","):
        name, *rest = part.strip().split(":")
        if name.lower() in _NOTHING:
            continue
        count = 1
        if rest and (number := _COUNT.fullmatch(rest[-1])):
            count = int(number[1]) * 1024 ** " kmgtp".index(number[2].lower() or " ")
            rest.pop()
        yield Gres(name, ":".join(rest), count)


def _without_brackets(text: str) -> str:
    """Return a text without what stands in brackets, commas among it; a bracket that is not closed goes to the end."""
    kept, depth = [], 0
    for letter in text:
        depth += letter == "("
        if not depth:
            kept.append(letter)
        depth = max(depth - (letter == ")"), 0)
    return "".join(kept)
