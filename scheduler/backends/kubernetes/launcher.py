"""The program in each pod of a job: it starts the pod's ranks, forwards their output, and reports how they ended.

Its source travels in the pod's command, so that any image with Python 3.9 will do: one file, standard library only.
Each piece that a rank prints becomes one line of the container's log, `RANK@OFFSET TEXT`, with a plus for the blank
where no end of line follows; the offset counts the rank's own bytes, so that a log with holes is read rightly.
"""

import ctypes
import json
import os
import pwd
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

STARTED_BEFORE = 76  # exit code of a second start
_NOT_STARTED = 127  # as in shells
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PIECE = 4096  # bytes of a line of the log at most; container runtimes split lines of 16 KiB
_POLL_S, _LOOK_AGAIN_S = 0.5, 0.02
_PROGRESS_BYTES, _MESSAGE_BYTES = 1024, 4096  # a termination message holds 4096

_libc = ctypes.CDLL(None, use_errno=True)


class Launcher:
    """The ranks of one pod, from their start to the end of the last process.

    Args:
        spec: What to run, as `pods.launcher_spec` has it.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.home = spec, Path(spec["home"])
        self.reason = ""  # why it is being stopped
        self.ends: list[tuple[int, int, int, float]] = []  # rank, code, signal, Unix time
        self.started_s = 0.0
        self._ranks: dict[int, int] = {}  # living ranks by pid
        self._pipes: dict[int, list[int]] = {}  # rank and count of its bytes, by descriptor
        self._kill_at_s = self._limit_at_s = float("inf")

    def run(self) -> int:
        """Run all ranks to their end, and return the container's exit code."""
        try:
            (self.home / "started").touch(exist_ok=False)
        except FileExistsError:
            return STARTED_BEFORE
        (self.home / "work").mkdir(exist_ok=True)
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._start_ranks()
        while self._ranks:
            self._handle_events(wake_out)
        self._kill_orphans()
        for pipe in list(self._pipes):
            while pipe in self._pipes:
                self._forward_output(pipe)
        self._write_message()
        return 1 if self.reason or any(code or number for _, code, number, _ in self.ends) else 0

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self._stop_ranks("cancelled")

    def _start_ranks(self) -> None:
        # A TERM between two forks would miss the ranks to come.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if self.reason:
            return
        self.started_s = time.time()
        if self.spec["limit_s"] is not None:
            self._limit_at_s = time.monotonic() + self.spec["limit_s"]
        for local_rank in range(len(self.spec["gpus"])):
            out, into = os.pipe()
            rank = self.spec["first_rank"] + local_rank
            pid = os.fork()
            if pid == 0:
                self._become_rank(local_rank, into)
            os.close(into)
            with suppress(PermissionError, ProcessLookupError):  # It runs its program already, or has ended.
                os.setpgid(pid, pid)  # The rank does the same: in either order, no signal misses it.
            self._ranks[pid] = rank
            self._pipes[out] = [rank, 0]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _become_rank(self, local_rank: int, output: int) -> None:
        """Turn this process, just forked, into a rank."""
        try:
            os.setpgid(0, 0)
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.chdir(self.spec["folder"])
            _close_descriptors()
            command = self.spec["command"]
            os.execvpe(command[0], command, self._rank_environment(local_rank))
        except BaseException as error:
            text = f"longshore: cannot start {self.spec['command'][0]!r} in {self.spec['folder']!r}: {error}\n"
            os.write(2, text.encode(errors="backslashreplace"))
        finally:  # A copy of the launcher must not live on.
            os._exit(_NOT_STARTED)

    def _rank_environment(self, local_rank: int) -> dict[str, str]:
        """Return the environment of a rank: the image's, the job's, and over them what the placement fixes."""
        spec = self.spec
        # As under torchrun, a rank sees all GPUs of the pod; one that sees its own alone is as the only one of a node.
        seen = [local_rank] if spec["visible_gpus"] == "rank" else list(range(len(spec["gpus"])))
        return {
            "PYTHONUNBUFFERED": "1",  # else what a program in Python prints is lost when it is killed
            **_user_variables(),
            **os.environ,
            **self._home_variable(),
            **spec["environment"],
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(spec["visible"][each] for each in seen),
            "RANK": str(spec["first_rank"] + local_rank),
            "LOCAL_RANK": str(seen.index(local_rank)),
            "WORLD_SIZE": str(spec["world"]),
            "LOCAL_WORLD_SIZE": str(len(seen)),
            "MASTER_ADDR": spec["master"],
            "MASTER_PORT": str(spec["port"]),
            "LONGSHORE_JOB": spec["job"],
            "LONGSHORE_ATTEMPT": spec["attempt"],
            "LONGSHORE_NODE": spec["node"],
            "LONGSHORE_GPUS": ",".join(str(spec["gpus"][each]) for each in seen),
            "LONGSHORE_PROGRESS": str(self.home / "progress.json"),
        }

    def _home_variable(self) -> dict[str, str]:
        """Return a home for a user without a writable one in the image, such as an arbitrary user id."""
        has_one = os.access(os.environ.get("HOME") or self.home / "none", os.W_OK | os.X_OK)
        return {} if has_one else {"HOME": str(self.home / "work")}

    def _handle_events(self, wake: int) -> None:
        """Wait until something happens, and do what is due then."""
        until_s = min(self._kill_at_s, self._limit_at_s) - time.monotonic()
        ready, _, _ = select.select([wake, *self._pipes], [], [], max(min(_POLL_S, until_s), 0.0))
        for descriptor in ready:
            if descriptor == wake:
                os.read(wake, _PIECE)
            else:
                self._forward_output(descriptor)
        self._reap_children()
        if time.monotonic() >= self._limit_at_s:
            self._limit_at_s = float("inf")
            self._stop_ranks("time limit")
        if time.monotonic() >= self._kill_at_s:
            self._kill_at_s = time.monotonic() + _POLL_S  # A process that hangs in the kernel outlives it for a while.
            self._signal_ranks(signal.SIGKILL)

    def _forward_output(self, pipe: int) -> None:
        """Forward a piece of a rank's output."""
        content = os.read(pipe, _PIECE)
        if not content:
            os.close(pipe)
            del self._pipes[pipe]
            return
        rank, offset = self._pipes[pipe]
        self._pipes[pipe][1] += len(content)
        pieces = []
        for line in _split_lines(content):
            mark, text = (b" ", line[:-1]) if line.endswith(b"\n") else (b"+", line)
            pieces.append(b"%d@%d%b%b\n" % (rank, offset, mark, text))
            offset += len(line)
        _write_stdout(b"".join(pieces))

    def _reap_children(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._ranks:
                code = os.waitstatus_to_exitcode(status)
                self.ends.append((self._ranks.pop(pid), max(code, 0), max(-code, 0), time.time()))
                if code != 0:
                    self._stop_ranks("rank failed")

    def _stop_ranks(self, reason: str) -> None:
        """Send SIGTERM to all processes; they are killed after the grace. The first reason stays."""
        if not self.reason:
            self.reason = reason
            self._kill_at_s = time.monotonic() + self.spec["grace_s"]
            self._signal_ranks(signal.SIGTERM)

    def _signal_ranks(self, number: int) -> None:
        for pid in self._ranks:
            with suppress(ProcessLookupError, PermissionError):  # Gone, or another user's now: the caller waits for it.
                os.killpg(pid, number)

    def _kill_orphans(self) -> None:
        """Kill what the ranks left behind, all of which this process has adopted."""
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
            except ChildProcessError:
                return
            for child in _child_pids():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(_LOOK_AGAIN_S)

    def _write_message(self) -> None:
        """Write the termination message, which the kubelet puts into the pod's status."""
        message = {
            "attempt": self.spec["attempt"],
            "reason": self.reason,
            "started_s": self.started_s,
            "ends": self.ends,
            "progress": self._read_progress(),
        }
        content = json.dumps(message, separators=(",", ":")).encode()
        if len(content) > _MESSAGE_BYTES:
            content = json.dumps({**message, "progress": {}}, separators=(",", ":")).encode()
        with suppress(OSError):  # Without it, an exit code of 0 is no proof of success.
            Path(self.spec["message"]).write_bytes(content)

    def _read_progress(self) -> dict[str, float]:
        """Return the finite numbers in the job's progress file."""
        try:
            with (self.home / "progress.json").open("rb") as progress:
                content = json.loads(progress.read(_PROGRESS_BYTES + 1))
        except (OSError, ValueError, RecursionError):
            return {}
        items = content.items() if isinstance(content, dict) else ()
        limit = sys.float_info.max
        return {key: value for key, value in items if type(value) in (int, float) and -limit <= value <= limit}


def _close_descriptors() -> None:
    """Close all descriptors but standard input, output and error: before Python 3.10, closerange tries billions."""
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2:
            with suppress(OSError):  # The one of the list itself is closed.
                os.close(descriptor)


def _user_variables() -> dict[str, str]:
    """Return the user's name, or the number of one without: some programs fail without any."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return {"USER": name, "LOGNAME": name}


def _split_lines(content: bytes) -> list[bytes]:
    """Split at ends of lines alone: bytes.splitlines splits at carriage returns too."""
    *whole, rest = content.split(b"\n")
    return [part + b"\n" for part in whole] + [rest] * bool(rest)


def _child_pids() -> list[int]:
    """Return the children of this process: the parent is the second field after the program's name in /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has ended meanwhile.
            if int(path.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def _write_stdout(lines: bytes) -> None:
    while lines:
        lines = lines[os.write(1, lines) :]


if __name__ == "__main__":
    sys.exit(Launcher(json.loads(sys.argv[1])).run())
