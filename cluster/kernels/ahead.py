"""Compiling before it is needed, by processes over the cores, which share what they compile and may end at any time."""

import hashlib
import importlib
import inspect
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import numba
from numba.core import event, types
from numba.core.errors import NumbaError
from numba.core.types import Type

from ..files.errors import LongshoreError, PluginError
from .compiled import COMPILES, PART, Kernel
from .kept import by_one_process, cache_folder, can_be_kept, processor_id

REPORT_S = 1.0  # between two reports of progress, at most
PROGRAM = ":program"  # behind a kernel's key, of what Python calls
ENDED_S = 10.0  # that a process which was killed may take to end
_WORKER_CODE = """\
import os, sys
sys.path[:] = sys.argv.pop().split(os.pathsep)
from longshore.cluster.kernels.ahead import compile_as_worker
compile_as_worker()
"""


class Rehearsal(NamedTuple):
    """What a command will call.

    Args:
        kernels: Those that Python calls, among others that do not count. What they call is compiled first, by all
            processes at once.
        samples: One of each kind of argument that is neither a number nor a plain array, such as a simulation.
        play: Calls them, with all that belongs to it.
    """

    kernels: Sequence[object]
    samples: Sequence[object]
    play: Callable[[], object]


class CompileProgress(NamedTuple):
    """How far it is."""

    done: int  # kernels, each of which counts once more as Python calls it: that takes longest
    all: int  # that there are, as far as is known
    now: str  # a kernel that is being compiled, "" if none is
    since_s: float


def unplayed_rehearsals(rehearsals: Iterable[str]) -> list[str]:
    """Return those of some rehearsals that were not played to their end on such a machine; see `compile_ahead`."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return []
    return [name for name in dict.fromkeys(rehearsals) if not _stamp_path(name).exists()]


def compile_ahead(
    rehearsals: Iterable[str], report: Callable[[CompileProgress], None], processes: int | None = None
) -> None:
    """Compile what commands will call, unless that was done. Where nothing can be kept, nothing is done either.

    Args:
        rehearsals: Each `module:function`, or `module:function:argument`; the function returns a Rehearsal.
        report: Is called about once a second.
        processes: At most; one for each core that this process may use if None.

    Raises:
        PluginError: If something could not be compiled. All else was.
    """
    names = unplayed_rehearsals(rehearsals)
    if not names or not can_be_kept():
        return
    count = min(processes or len(os.sched_getaffinity(0)), 8)
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(_Worker(names, messages))
        failed = _report_until_ended(messages, count, report)
    if failed:
        raise PluginError("; ".join(f"{name} cannot be compiled: {why}" for name, why in failed.items()))


def _stamp_path(name: str) -> Any:
    return cache_folder() / "done" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}-{processor_id()}"


def _report_until_ended(
    messages: "queue.SimpleQueue[dict[str, Any]]", count: int, report: Callable[[CompileProgress], None]
) -> dict[str, str]:
    """Report progress until all processes have ended; return what could not be compiled, and why."""
    began, at_work = time.monotonic(), count
    every, done, failed, now = set[str](), set[str](), dict[str, str](), dict[str, None]()
    while at_work:
        with suppress(queue.Empty):
            message = messages.get(timeout=REPORT_S)
            every.update(message.get("all", ()))
            failed |= message.get("failed", {})
            if "begins" in message:
                now[message["begins"]] = None
            for ended in message.get("ends", ()):
                done.add(ended)
                now.pop(ended, None)
            at_work -= "over" in message
        name = next(reversed(now), "::").split(":")[1]
        report(CompileProgress(len(done & every), len(every), name, time.monotonic() - began))
    return failed


class _Worker:
    """A process that compiles; it ends with this one."""

    def __init__(self, names: Sequence[str], messages: "queue.SimpleQueue[dict[str, Any]]") -> None:
        command = [sys.executable, "-c", _WORKER_CODE, json.dumps(names), os.pathsep.join(sys.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._messages, self._names = messages, names
        self._reads = threading.Thread(target=self._forward_messages, name="compiling", daemon=True)

    def _forward_messages(self) -> None:
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        errors = threading.Thread(target=self._keep_last_error, daemon=True)
        errors.start()
        for line in process.stdout:
            with suppress(ValueError):  # something that a package prints
                message = json.loads(line)
                if isinstance(message, dict):
                    self._messages.put(message)
        errors.join()
        over: dict[str, Any] = {"over": True}
        if process.wait() != 0:
            over["failed"] = {", ".join(self._names): self._error or f"a process ended with {process.returncode}"}
        self._messages.put(over)

    _error = ""

    def _keep_last_error(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._error = line.decode(errors="replace").strip() or self._error

    def __enter__(self) -> "_Worker":
        self._reads.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it may have ended
        self._process.wait(ENDED_S)
        self._reads.join(ENDED_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def compile_as_worker() -> None:
    """Compile, as one of several processes: what another one is at is left to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it ends it
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    event.register(COMPILES, _CompileReporter())
    rehearsals: dict[str, Rehearsal] = {}
    names = json.loads(sys.argv[1])
    for name in names:
        with _reporting_failure(name):
            rehearsals[name] = _load_rehearsal(name)
    kernels = _callees_first(kernel for rehearsal in rehearsals.values() for kernel in rehearsal.kernels)
    _send_message(all=sorted(set[str]().union(*map(_counted_names, rehearsals.values()))))
    samples = {type(sample): numba.typeof(sample) for rehearsal in rehearsals.values() for sample in rehearsal.samples}
    for kernel in kernels:
        if _compile_if_free(kernel, samples):
            _send_message(ends=[kernel.key])  # now, or earlier
    for waits in (False, True):
        for name, rehearsal in rehearsals.items():
            with _reporting_failure(name), by_one_process(f"rehearsal {name}", waits=waits) as free:
                if free and not _stamp_path(name).exists():
                    rehearsal.play()
                    _stamp_path(name).parent.mkdir(exist_ok=True)
                    _stamp_path(name).touch()
                if _stamp_path(name).exists():
                    # With those that were kept, or called otherwise than expected.
                    _send_message(ends=sorted(_counted_names(rehearsal)))


def _counted_names(rehearsal: Rehearsal) -> set[str]:
    """Return the names under which kernels and programs of a rehearsal are counted."""
    programs = {kernel.key + PROGRAM for kernel in rehearsal.kernels if isinstance(kernel, Kernel)}
    return programs | {kernel.key for kernel in _callees_first(rehearsal.kernels)}


def _load_rehearsal(name: str) -> Rehearsal:
    module, function, *arguments = name.split(":", 2)
    found: Rehearsal = getattr(importlib.import_module(module), function)(*arguments)
    return found


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


_send_lock = threading.Lock()


def _send_message(**message: object) -> None:
    with _send_lock:
        sys.stdout.write(json.dumps(message) + "\n")  # the process that started this one reads it
        sys.stdout.flush()


class _CompileReporter(event.Listener):
    """Reports each kernel to the process that started this one."""

    def on_start(self, event: Any) -> None:
        """Report a kernel that is being compiled."""
        if name := _counted_name(event):
            _send_message(begins=name)

    def on_end(self, event: Any) -> None:
        """Report a kernel that was compiled."""
        if name := _counted_name(event):
            _send_message(ends=[name])


def _counted_name(event: Any) -> str:
    """Return the name under which what is compiled is counted, "" of what Numba compiles of its own."""
    kernel = event.data["dispatcher"]
    return kernel.key + ("" if event.data.get(PART) else PROGRAM) if isinstance(kernel, Kernel) else ""


@contextmanager
def _reporting_failure(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, LongshoreError) else f"{type(error).__name__}: {error}"
        _send_message(failed={name: " ".join(reason.split())})


def _callees_first(roots: Iterable[object]) -> list[Kernel]:
    """Return kernels and all that they call, each behind what it calls."""
    met, found = set[Kernel](), list[Kernel]()

    def add(kernel: Kernel) -> None:
        if kernel not in met:
            met.add(kernel)
            for callee in kernel.callees():
                add(callee)
            found.append(kernel)

    for root in roots:
        if isinstance(root, Kernel):
            add(root)
    return found


def _compile_if_free(kernel: Kernel, samples: Mapping[type, Type]) -> bool:
    """Compile a kernel as others will most likely call it, by the types of its annotations.

    Where it is called otherwise it is compiled once more, by its caller.

    Returns:
        Whether it is compiled so.
    """
    hints = inspect.get_annotations(kernel.py_func)
    known = {int: types.int64, float: types.float64, bool: types.boolean, **samples}
    try:
        arguments = tuple(known[hints[name]] for name in inspect.signature(kernel.py_func).parameters)
    except (KeyError, TypeError):  # an array, whose number of dimensions only the caller knows
        return False
    try:
        return kernel.compile_part_if_free(arguments)
    except NumbaError:
        return False
