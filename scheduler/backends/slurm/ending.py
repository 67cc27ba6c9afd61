"""How attempts end that do not end by themselves: by Slurm's own means, and by sweeps."""

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from ....cluster.files.errors import BackendError
from ...files.durable import make_folder, open_folder, write_first
from ..local.remembered import NO_FILE_OF_OURS
from ..shared_folder.node import nodes_of, read_spec
from ..shared_folder.records import Records
from ..shared_folder.sweep import SWITCHED_OFF, write_gone
from .commands import Commands
from .snapshot import Node, Snapshot
from .submission import submit_sweep, sweep_comment_of

log = logging.getLogger(__name__)

_AGAIN_S = 5.0  # between two tries
_LATE_S = 30.0  # after an attempt's grace, when Slurm has to kill what does not end


def is_late(folder: int) -> bool:
    """Say whether an attempt should have ended by itself since it was cancelled.

    Of one whose file makes no sense nobody knows how long that may take, and it is not waited for.

    Args:
        folder: Descriptor of its folder.

    Raises:
        OSError: If that cannot be told.
    """
    asked_s = os.stat("cancel.json", dir_fd=folder, follow_symlinks=False).st_mtime
    try:
        return not time.time() <= asked_s + read_spec(folder).grace_s + _LATE_S
    except (ValueError, TypeError, OverflowError):
        return True
    except OSError as error:
        if error.errno not in NO_FILE_OF_OURS:
            raise
        return True


class Endings:
    """Lets Slurm end what does not end by itself, and what is left on nodes whose supervisor is gone.

    Args:
        commands: Slurm's.
        options: Further options of sbatch.
    """

    def __init__(self, commands: Commands, options: Sequence[str]) -> None:
        self._commands, self._options = commands, options
        self._again_s: dict[str, float] = {}  # before which nothing is tried again, by what
        self._over_s: dict[str, float] = {}  # when an attempt's Slurm job was first found to be over

    def kill(self, attempt: str) -> None:
        """Let Slurm kill an attempt's jobs, which are known by its name: a number could be another's by now."""
        self._try(f"scancel {attempt}", partial(self._commands.call, "scancel", ("--me", f"--name={attempt}")))

    def sweep(self, folder: int, attempt: str, path: str, records: Records, snapshot: Snapshot) -> None:
        """See to the proof that nothing is left of an attempt whose Slurm job is over.

        Args:
            folder: Descriptor of its folder.
            attempt: Its name.
            path: Its folder.
            records: What is known of it.
            snapshot: What Slurm says.

        Raises:
            OSError: If its folder cannot be used.
        """
        if snapshot.read_s <= self._over_s.setdefault(attempt, time.monotonic()):
            return  # The snapshot may be older than the job: the next one tells.
        spec = read_spec(folder)
        for part, node in enumerate(nodes_of(spec)):
            if records.parts[part].is_over or _is_vouched_for(folder, attempt, part, snapshot.nodes.get(node)):
                continue
            jobs = snapshot.jobs.get(sweep_comment_of(attempt, part), ())
            if all(job.is_over for job in jobs):
                do = partial(submit_sweep, self._commands, spec, part, node, path, self._options)
                self._try(f"sweep {attempt} {part}", do)

    def forget(self, attempt: str) -> None:
        """Forget what was tried for an attempt."""
        self._over_s.pop(attempt, None)
        self._again_s = {key: at_s for key, at_s in self._again_s.items() if attempt not in key.split()}

    def _try(self, what: str, do: Callable[[], object]) -> None:
        """Do something unless it was tried a short while ago; if it fails, it is tried again when asked next."""
        if time.monotonic() < self._again_s.get(what, 0.0):
            return
        self._again_s[what] = time.monotonic() + _AGAIN_S
        try:
            do()
        except BackendError as error:
            log.warning("%s: %s", what, error)


def _is_vouched_for(folder: int, attempt: str, part: int, node: Node | None) -> bool:
    """Say whether nothing can be left on a node even though it is not asked, and write that down."""
    make_folder(folder, f"part-{part}")
    own = open_folder(f"part-{part}", inside=folder)
    try:
        nobody = {"attempt": attempt, "pid": 1, "start_ticks": 0, "boot": "", "session": 0}
        if write_first(own, "started.json", json.dumps(nobody).encode()):
            write_gone(own, attempt, "it was never started there")  # A supervisor that comes late finds that and ends.
        elif node is not None and node.is_fenced:
            write_gone(own, attempt, SWITCHED_OFF)
        else:
            return False
        return True
    finally:
        os.close(own)
