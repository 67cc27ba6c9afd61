"""A backend that does at once what it is asked, for tests of the scheduler alone."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from longshore.cluster.model.placement import Placement
from longshore.scheduler.backends.protocol import Attempt, Backend, Capabilities, GpuView, NodeView, StepLines
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.states import EndedBy, RankEnd, Run, Status

WELL = Status(Run.EXITED, (RankEnd(0, 0, 0, 2.0),), started_s=1.0)
AGAIN = Status(Run.EXITED, (RankEnd(0, 75, 0, 2.0),), EndedBy.RANK_FAILED, started_s=1.0)
STOPPED = Status(Run.EXITED, (RankEnd(0, 0, 15, 2.0),), EndedBy.CANCEL, started_s=1.0)


class Obedient(Backend):
    """Runs attempts until they are reported to stop or the test ends them.

    Args:
        nodes: GPUs of each node.
    """

    capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=True, reads_steps=True)

    def __init__(self, nodes: Mapping[str, int]) -> None:
        self.nodes = dict(nodes)
        self.now_s: Callable[[], float] = time.time
        self.known: dict[str, Status] = {}
        self.attempts: dict[str, Attempt] = {}
        self.holds: set[str] = set()  # attempts of which processes are left, whatever else is known of them

    @classmethod
    def build(cls, settings: object, folder: Path, layout: Layout) -> Self:
        return cls(layout.nodes)

    def observe(self) -> tuple[NodeView, ...]:
        return tuple(
            NodeView(node, tuple(map(GpuView, range(gpus))), self.now_s()) for node, gpus in self.nodes.items()
        )

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        self.known.setdefault(attempt.name, Status(Run.RUNNING, started_s=1.0))
        self.attempts[attempt.name] = attempt

    def status(self, name: str) -> Status:
        return self.known.get(name, Status(Run.ABSENT))

    def end(self, status: Status, job: str = "") -> int:
        """End what runs, of one job or of all; return how many attempts that were."""
        ended = [name for name, it in self.known.items() if it.run is Run.RUNNING and job in name]
        self.known |= dict.fromkeys(ended, status)
        return len(ended)

    def cancel(self, name: str, reason: str) -> None:
        if self.status(name).run in (Run.RUNNING, Run.ABSENT):
            self.known[name] = STOPPED

    def is_proven_gone(self, name: str) -> bool:
        return name not in self.holds and self.status(name).run is not Run.RUNNING

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        return b"", offset

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        steps = b"".join(b"train %d %d.5\n" % (step, step + 1) for step in range(3))
        return [StepLines(steps, b"1 1.5 - /tmp/saved\n", len(steps), 19) for _ in before]

    def forget(self, name: str) -> None:
        assert self.is_proven_gone(name)
