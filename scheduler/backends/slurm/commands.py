"""Slurm's commands, each with a deadline, and what they report of its jobs and nodes at one moment.

Source: Slurm's manual pages sinfo(1), scontrol(1) and gres.conf(5).
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ....cluster.files.errors import BackendError
from ..protocol import CannotHonourError

# Other spellings of a state, and its name here. Narrow fields have the short forms.
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
_GRES_COUNT = re.compile(r"([0-9]+)([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_NOTHING = ("", "none", "n/a", "null")
_JOB_NUMBER, _NODE_NAME = re.compile(r"\d{1,18}\S*", re.ASCII), re.compile(r"[\w.-]+", re.ASCII)
_SQUEUE_ARGUMENTS = ("--noheader", "--me", "--all", "--states=all", "--format=%i|%T|%k")
_SINFO_ARGUMENTS = ("--noheader", "--Node", "--all", "--format=%N|%o|%G|%T|%E")
# All others may still run, or run again by themselves.
OVER_STATES = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
     "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT", "TIMEOUT")
)  # fmt: skip
TIMED_OUT = frozenset(("DEADLINE", "TIMEOUT"))
_INDEXED = re.compile(r"(?:.*\D)?([0-9]{1,5})")  # a type for each GPU, which ends in its index
_NEVER_ERRORS = ("node configuration is not available", "Invalid node name", "Invalid generic resource")
_PIECE_COMMENT = re.compile(r"(longshore:[^:]+):\d+")  # comment of a piece of a ring, in which that of its attempt
_SNAPSHOT_S = 1.0  # minimum between two polls, except for a launch


@dataclass(frozen=True, slots=True)
class SlurmTimes:
    """Of the Slurm backend, in seconds."""

    deadline_s: float = 5.0  # of a command; squeue takes 0.04 s for 1,000 jobs
    rest_s: float = 5.0  # after a missed deadline, in which the next calls fail at once: the scheduler has other work
    old_s: float = 1.0  # minimum between two polls of jobs of sbatch
    idle_poll_s: float = 10.0  # between two polls while the list of all jobs is not read
    again_s: float = 5.0  # between two tries to end the same job
    stray_s: float = 60.0  # for which a lost node has to be back: within it Slurm kills what was left there


SLURM_TIMES = SlurmTimes()


class Commands:
    """Runs Slurm's commands as this user.

    Raises:
        BackendError: If Slurm's commands are not installed.
    """

    def __init__(self, conf: Path | None, times: SlurmTimes = SLURM_TIMES) -> None:
        self._paths = {
            name: _find_program(name) for name in ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
        }
        # Nothing of the caller's environment, where SBATCH_ and SQUEUE_ variables would change what is meant.
        self._environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        if conf is not None:
            self._environment["SLURM_CONF"] = str(conf)
        self._times, self._rest_until_s = times, 0.0

    @property
    def srun_path(self) -> str:
        """Path of srun."""
        return self._paths["srun"]

    def call(self, name: str, arguments: Sequence[str], stdin: str = "") -> str:
        """Run a command and return what it prints.

        Raises:
            CannotHonourError: If Slurm has no such nodes or GPUs, however long one waits.
            BackendError: If it fails or does not end in time: it may have had its effect.
        """
        rest_s = self._rest_until_s - time.monotonic()
        if rest_s > 0.0:
            raise BackendError(f"{name}: Slurm's controller did not answer; it is called again in {rest_s:.0f} s")
        try:
            done = subprocess.run(
                [self._paths[name], *arguments], input=stdin, env=self._environment, cwd="/",
                capture_output=True, text=True, errors="replace", timeout=self._times.deadline_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            self._rest_until_s = time.monotonic() + self._times.rest_s
            within = f"within {self._times.deadline_s:.0f} s"
            raise BackendError(f"{name}: Slurm's controller did not answer {within}") from error
        except OSError as error:
            raise BackendError(f"{name} cannot be run: {error}") from error
        if done.returncode != 0:
            message = f"{name} failed: {' '.join(done.stderr.split())}"
            raise (CannotHonourError if any(words in message for words in _NEVER_ERRORS) else BackendError)(message)
        return done.stdout


def _find_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise BackendError(f"no program {name} on the path; install Slurm's commands (Debian: slurm-client)")
    return path


@dataclass(frozen=True, slots=True)
class Gres:
    """A generic resource of a node."""

    name: str
    type: str  # "" if it has none
    count: int


def parse_node_state(text: str) -> tuple[str, frozenset[str]]:
    """Return what a node does, and what is true of it besides, in long words and capital letters.

    Args:
        text: As `sinfo` has it, such as `down*` or `mixed-`, or as `scontrol` has it, such as `IDLE+CLOUD+DRAIN`.
    """
    words, suffixes = list[str](), set[str]()
    for word in text.strip().upper().split("+"):
        bare = word.rstrip("".join(_SUFFIXES))  # older ones have them behind the first word, as in `DOWN*+DRAIN`
        words.append(_SHORT.get(bare, bare))
        suffixes |= {_SUFFIXES[each] for each in word[len(bare) :]}
    base, *flags = words
    return base, frozenset(flags) | suffixes


def parse_gres(text: str) -> Iterator[Gres]:
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
        if rest and (number := _GRES_COUNT.fullmatch(rest[-1])):
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


class SlurmJob(NamedTuple):
    """A Slurm job, or one component of it."""

    number: int  # of all its components
    state: str

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in OVER_STATES


class SlurmNode(NamedTuple):
    """A node of Slurm."""

    address: str
    types: Mapping[int, str]  # type of gres that each GPU is, by its index; empty if Slurm cannot give one by its index
    state: str  # in Slurm's words, with its marks, such as down*
    reason: str  # why it is out of service

    @property
    def is_known(self) -> bool:
        """Whether it has answered since the controller was started."""
        return parse_node_state(self.state)[0] != "UNKNOWN"

    @property
    def answers(self) -> bool:
        """Whether its daemon answers the controller."""
        return "NOT_RESPONDING" not in parse_node_state(self.state)[1]

    @property
    def takes_jobs(self) -> bool:
        """Whether Slurm starts further jobs there. In a state that is not known here it is not expected to."""
        base, flags = parse_node_state(self.state)
        return base in _TAKES_JOBS and not flags & _TAKES_NONE

    @property
    def is_down(self) -> bool:
        """Whether Slurm has lost it, or its administrator has taken it out at once."""
        return parse_node_state(self.state)[0] == "DOWN"

    @property
    def is_back(self) -> bool:
        """Whether it answers again, if Slurm had lost it."""
        return self.is_known and self.answers and not self.is_down

    @property
    def is_fenced(self) -> bool:
        """Whether it is switched off for certain: by Slurm, or by its administrator's reason."""
        base, flags = parse_node_state(self.state)
        return "POWERED_DOWN" in (base, *flags) or (self.is_down and self.reason.lower().startswith("fenced"))


class SlurmSnapshot(NamedTuple):
    """All of this user's jobs, by comment, and all nodes."""

    read_s: float  # time of the poll, by the monotonic clock
    jobs: Mapping[str, tuple[SlurmJob, ...]]  # those of the pieces of a ring also under that of its attempt
    nodes: Mapping[str, SlurmNode]


def _read_snapshot(commands: Commands) -> SlurmSnapshot:
    """Return Slurm's jobs and nodes."""
    read_s = time.monotonic()
    jobs: dict[str, list[SlurmJob]] = {}
    for number, state, comment in _split_records(commands.call("squeue", _SQUEUE_ARGUMENTS), 3, _JOB_NUMBER):
        job = SlurmJob(int(re.findall(r"\d+", number)[0]), state)
        jobs.setdefault(comment, []).append(job)
        if piece := _PIECE_COMMENT.fullmatch(comment):
            jobs.setdefault(piece[1], []).append(job)
    # After the jobs: a controller that was started since then has nodes that it does not know yet.
    nodes = {}
    for name, address, gres, state, reason in _split_records(commands.call("sinfo", _SINFO_ARGUMENTS), 5, _NODE_NAME):
        nodes[name] = SlurmNode(address, gpu_types(gres), state, reason)
    return SlurmSnapshot(read_s, {comment: tuple(found) for comment, found in jobs.items()}, nodes)


def gpu_types(gres: str) -> dict[int, str]:
    """Return the type of gres that each GPU of a node is, by its index; none if Slurm cannot give one by its index.

    Args:
        gres: As Slurm reports, such as `gpu:i0:1,gpu:i1:1(S:0),gpumem:160G`. A GPU that Slurm counts as 0 has no type.
    """
    gpus = [each for each in parse_gres(gres) if each.name == "gpu"]
    indexed = {int(found[1]): gpu for gpu in gpus if gpu.count <= 1 and (found := _INDEXED.fullmatch(gpu.type))}
    exact = len(indexed) == len(gpus) and sorted(indexed) == list(range(len(indexed)))
    return {index: each.type for index, each in indexed.items() if each.count == 1} if exact else {}


def _split_records(output: str, count: int, first: re.Pattern[str]) -> Iterator[list[str]]:
    """Yield the fields of each record; the last one is a free text, of which only the first line counts.

    Args:
        output: Of a command of Slurm.
        count: Fields of a record.
        first: What the first field of each is like.

    Raises:
        BackendError: If the output does not begin with a record.
    """
    is_first = True
    for line in output.split("\n"):
        fields = line.split("|", count - 1)
        if len(fields) == count and first.fullmatch(fields[0]):
            is_first = False
            yield fields
        elif is_first and line:  # later it is a further line of a text, such as the reason why a node is drained
            raise BackendError(f"Slurm reports {line!r}, which has not the {count} fields of a record")


class SlurmView:
    """Slurm's jobs and nodes, at most a second old."""

    def __init__(self, commands: Commands, nodes: Collection[str]) -> None:
        self._commands, self._nodes = commands, nodes
        self._snapshot: SlurmSnapshot | None = None

    def read(self) -> SlurmSnapshot:
        """Return Slurm's jobs and nodes.

        Raises:
            BackendError: If it does not answer.
        """
        if self._snapshot is None or time.monotonic() > self._snapshot.read_s + _SNAPSHOT_S:
            self._snapshot = _read_snapshot(self._commands)
        return self._snapshot

    def invalidate(self) -> None:
        """Poll Slurm at the next call: something was changed."""
        self._snapshot = None

    def is_complete(self, snapshot: SlurmSnapshot) -> bool:
        """Return whether a snapshot lacks nothing that exists.

        In the first seconds after its start Slurm's controller waits for its nodes, and a job that it does not know
        may still appear.
        """
        return all(snapshot.nodes[name].is_known for name in self._nodes if name in snapshot.nodes)

    def read_complete(self) -> SlurmSnapshot:
        """Return all of Slurm's jobs and nodes.

        Raises:
            BackendError: If it does not answer, or does not know all nodes yet.
        """
        snapshot = self.read()
        if not self.is_complete(snapshot):
            raise BackendError("Slurm was started a short while ago and does not know all its nodes yet")
        return snapshot
