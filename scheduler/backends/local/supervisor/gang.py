"""The ranks of an attempt, from their start to the end of the last process. Standard library only."""

import os
import signal
import time
from collections import deque

from ....files.processes import children, find, memory_kills
from .logs import drop_beginning, open_log
from .orphans import send
from .rank import Start, fork_rank
from .spec import Part, Spec

_LOG_BYTES = 64 << 20  # of each rank's output, kept at least; twice as much at most
_TOGETHER_S = 0.05  # between the signals to a rank and to this process of whoever ends both: a machine, or Slurm
_DYING_S = 60.0  # that a process may take from its kill, which counts at once, to its end: it frees its memory first


class Gang:
    """Ranks of an attempt: they start together, and when one fails the others are stopped.

    Args:
        spec: The attempt.
        part: Which of its ranks.
        folder: Descriptor of the folder for their logs and what they tell.
        path: The same folder.
    """

    def __init__(self, spec: Spec, part: Part, folder: int, path: str) -> None:
        self.reason = ""  # why it is being stopped
        self.ends: list[tuple[int, int, int, float]] = []  # rank, code, signal, Unix time: in the order of the ends
        self._grace_s = spec.grace_s
        self._kill_at_s = 0.0
        self._killed = False
        self._memory_kills = deque([(time.monotonic(), memory_kills())])  # time and count of the readings of late
        self._logs = {rank: open_log(folder, rank) for rank in part.visible}
        self._gate, self._gate_in = os.pipe()
        self._ranks: dict[int, int] = {}  # living ranks by pid
        for rank, log in self._logs.items():
            self._ranks[fork_rank(spec, Start(rank, path, part, log, self._gate, self._gate_in))] = rank

    @property
    def running(self) -> bool:
        """Whether a rank lives."""
        return bool(self._ranks)

    def pids(self) -> list[tuple[int, int]]:
        """Return the pid and the start of each rank, in the order of ranks; none of them has been reaped."""
        found = (find(pid) for pid in self._ranks)
        return [(process.pid, process.start_ticks) for process in found if process is not None]

    def begin(self) -> None:
        """Let the ranks run their program."""
        os.write(self._gate_in, bytes(len(self._ranks)))
        os.close(self._gate)
        os.close(self._gate_in)

    def wait(self, most_s: float) -> bool:
        """Wait until a process ended, this one is asked to end, or the grace is over.

        Args:
            most_s: How long to wait at most.

        Returns:
            Whether this process is asked to end.
        """
        if self.reason and not self._killed:
            most_s = min(most_s, max(self._kill_at_s - time.monotonic(), 0.0))
        woken = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, most_s)
        if woken is not None and woken.si_signo == signal.SIGCHLD and not self.reason:
            # A rank that was asked to end with this process may be the first to react; its end is not its own then.
            woken = signal.sigtimedwait({signal.SIGTERM}, _TOGETHER_S)
        return woken is not None and woken.si_signo == signal.SIGTERM

    def stop(self, reason: str) -> None:
        """Ask all processes to end; they are killed after the grace. The first reason stays."""
        if not self.reason:
            self.reason = reason
            self._kill_at_s = time.monotonic() + self._grace_s
            self._signal(signal.SIGTERM)

    def tend(self) -> None:
        """Take note of the ranks that ended, keep their logs small, and kill what was asked to end long enough ago."""
        self._reap()
        self._count_memory_kills()
        for log in self._logs.values():
            drop_beginning(log, _LOG_BYTES)
        if self.reason and time.monotonic() >= self._kill_at_s:
            self._signal(signal.SIGKILL)
            self._killed = True

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            rank = self._ranks.pop(pid, -1)
            if rank >= 0:
                code = os.waitstatus_to_exitcode(status)
                self.ends.append((rank, max(code, 0), max(-code, 0), time.time()))
                if code != 0:
                    self.stop(self._why(code))

    def _count_memory_kills(self) -> None:
        """Note how many processes have been killed for memory: what is counted now may be told to us much later."""
        now_s, counts = time.monotonic(), self._memory_kills
        counts.append((now_s, memory_kills()))
        while len(counts) > 1 and counts[1][0] < now_s - _DYING_S:
            counts.popleft()

    def _why(self, code: int) -> str:
        """Return why a rank that failed has failed: nobody else but a lack of memory kills at about that moment."""
        was_killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # itself, or what a shell waited for
        ran_out = was_killed and memory_kills() > self._memory_kills[0][1]
        return "out of memory" if ran_out else "rank failed"

    def _signal(self, number: int) -> None:
        """Signal the groups of living ranks, and what has come to this process from those that ended.

        Both are children that have not been reaped, so none of these numbers can be a stranger's.
        """
        for pid in self._ranks:
            send(os.killpg, pid, number)
        for child in children(os.getpid()):
            if child.pid not in self._ranks:
                send(os.kill, child.pid, number)
