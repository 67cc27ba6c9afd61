"""Which of the sub-tasks that share a device has it: one at a time, by the order of their passes.

Source: SPEC P6.
"""

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """What a sub-task wants a device for; the lower comes first."""

    backward = 0  # frees what the forward pass has kept, and others wait for its gradients
    forward = 1
    update = 2
    phase = 3  # all passes of an iteration, of a sub-task without a pipeline, up to its synchronisation


class Pass(NamedTuple):
    """A piece of work that is ready to run; smaller ones come first.

    An earlier iteration comes before all of a later one. So nobody is overtaken for ever: others have only so many
    passes up to the iteration in which one waits.
    """

    iteration: int
    kind: Kind
    micro_batch: int = 0
    rank: int = 0


class Device:
    """A device, with who has it and who waits for it. Sub-tasks go by names of the caller's choice."""

    def __init__(self) -> None:
        self.holder: object = None
        self._waiting = dict[object, Pass]()

    def want(self, who: object, it: Pass) -> None:
        """Take in what is ready; a sub-task waits with one pass at a time."""
        self._waiting[who] = it

    def done(self, who: object) -> None:
        """Take the device from a sub-task if it has it, also from one that has ended."""
        self._waiting.pop(who, None)
        if self.holder is who:
            self.holder = None

    def grant(self) -> object:
        """Give the device to the first that waits; return who that is, None if it is taken or nobody waits."""
        if self.holder is not None or not self._waiting:
            return None
        self.holder = min(self._waiting, key=self._waiting.__getitem__)
        del self._waiting[self.holder]
        return self.holder
