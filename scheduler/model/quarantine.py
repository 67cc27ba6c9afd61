"""What stands in quarantine: a GPU, a node, or a link, because a check found it broken.

A job that the scheduler cannot handle is another matter (control/quarantine.py): no hardware is to blame for it.

Source: SPEC C4.
"""

from enum import StrEnum
from typing import NamedTuple

WHOLE = -1  # in place of the index of a GPU: the node itself


class Scope(StrEnum):
    """What is in quarantine."""

    DEVICE = "device"
    LINK = "link"
    NODE = "node"


class Clears(StrEnum):
    """What ends a quarantine."""

    CHECKS = "checks"  # checks that pass
    REBOOT = "reboot"  # the same, once the node has started anew
    OPERATOR = "operator"  # an operator, who knows that the action is done


class Place(NamedTuple):
    """What is in quarantine: a node, a GPU of it, or a link from there to another end."""

    node: str
    gpu: int = WHOLE
    other_node: str = ""  # of the other end of a link
    other_gpu: int = WHOLE

    @property
    def scope(self) -> Scope:
        """What it is."""
        if self.other_node:
            return Scope.LINK
        return Scope.NODE if self.gpu == WHOLE else Scope.DEVICE

    @property
    def ends(self) -> tuple["Place", ...]:
        """The ends of a link; of all else the place itself."""
        ends = (Place(self.node, self.gpu), Place(self.other_node, self.other_gpu))
        return ends if self.other_node else ends[:1]

    @property
    def words(self) -> str:
        """How people write it."""
        return " to ".join(it.node if it.gpu == WHOLE else f"{it.node}:{it.gpu}" for it in self.ends)

    def ordered(self) -> "Place":
        """Return the same link from the other end, if that comes first: a link has no direction here."""
        first, last = min(self.ends), max(self.ends)
        return Place(*first[:2], *last[:2]) if self.other_node else self

    def covers(self, other: "Place") -> bool:
        """Say whether what happens to this place happens to another one: a node has its GPUs, and ends have links."""
        return any(
            self == end or (self.scope is Scope.NODE and self.node == end.node) for end in (*other.ends, other)
        )  # fmt: skip


class Finding(NamedTuple):
    """What a check, an agent or an operator found."""

    place: Place
    check: str  # name of the check, as `xid.recent`
    cause: str  # what is wrong, in the same few words each time: how often it came is counted by them
    evidence: str  # what was seen: figures, lines of a log
    action: str  # what mends it, for people
    clears: Clears
    at_s: float  # Unix time at which it was seen
    boot_id: str = ""  # of the node then, "" if nobody knows


class Entry(NamedTuple):
    """One quarantine, over or not."""

    seq: int
    place: Place
    since_s: float  # Unix time
    symptom_s: float  # when it was last seen
    check: str
    cause: str
    evidence: str
    action: str
    clears: Clears
    tries: int  # how often it came for this cause of late, and how often checks did not pass since
    boot_id: str  # of the node when it came, "" if nobody knew
    not_before_s: float  # Unix time before which checks alone do not end it
    checked: str = ""  # how the last checks ended that were to clear it
    cleared_s: float | None = None  # None while it stands
    cleared_by: str = ""  # `checks` or who cleared it
