"""Progress of a command on standard error, and the console for its figures."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from ..cluster.files.errors import PluginError
from ..cluster.files.output_file import in_one_line
from ..cluster.files.paths import check_present_folder

if TYPE_CHECKING:
    from rich.console import Console

    from ..cluster.kernels.ahead import CompileProgress
    from ..training.run_folder import Progress as TrainingProgress

PIPE_COLUMNS = 160  # of output that goes to no terminal: wide enough for every table in one piece
COMPILING = "compiling, once after an install or upgrade"
REPEAT_S = 1.5  # of silence on a pipe, after which the present step is printed again


def console(*, stderr: bool = False) -> "Console":
    """Return standard output, or standard error, in which names and paths are shown as they are."""
    from rich.console import Console

    found = Console(markup=False, highlight=False, emoji=False, stderr=stderr)
    if not found.is_terminal:
        found.width = PIPE_COLUMNS
    return found


class StatusLines:
    """Lines of progress. The last line is repeated with the time so far, while nothing else is printed.

    Args:
        write: Writes a line.
        every_s: Seconds of silence after which the last line is repeated.
    """

    def __init__(self, write: Callable[[str], None], every_s: float = REPEAT_S) -> None:
        self._write, self._every_s = write, every_s
        self._last, self._since = "", 0.0
        self._changed, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)

    def show(self, text: str) -> None:
        """Print what begins."""
        self._last, self._since = text, time.monotonic()
        self._write(text)
        self._changed.set()

    def replace_last(self, text: str) -> None:
        """Repeat this text in place of the last line."""
        self._last = text

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._changed.set()
        self._thread.join()

    def _repeat(self) -> None:
        while not self._ends.is_set():
            if self._changed.wait(self._every_s):
                self._changed.clear()
            elif self._last:
                self._write(f"{self._last}, {time.monotonic() - self._since:.0f} s so far")


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done: in a status line, or line by line where standard error is no terminal.

    Raises:
        InputError: If the present folder has been deleted, in which no library can be loaded.
    """
    from rich.text import Text

    check_present_folder()

    to = console(stderr=True)
    if not to.is_terminal:
        with StatusLines(lambda text: to.print(f"{in_one_line(text)} ...")) as lines:
            lines.show(first)
            with reporting_compilation(lines.show, lines.replace_last):
                yield lines.show
        return
    with to.status(Text(f"{in_one_line(first)} ...")) as status:

        def show(text: str) -> None:
            status.update(Text(f"{in_one_line(text)} ..."))

        with reporting_compilation(show, show):
            yield show


@contextmanager
def reporting_compilation(first: Callable[[str], None], later: Callable[[str], None]) -> Iterator[None]:
    """Report each kernel that is compiled; those kept from an earlier run are not.

    Args:
        first: Takes the text for the first kernel.
        later: Takes it for all others, with their number.
    """
    from numba.core import event

    class Listener(event.Listener):
        """Gets an event for each kernel."""

        kernels = 0

        def on_start(self, event: Any) -> None:
            """Report that a kernel is being compiled."""
            self.kernels += 1
            report = first if self.kernels == 1 else later
            report(f"{COMPILING}: {event.data['dispatcher'].py_func.__name__}, kernel {self.kernels}")

        def on_end(self, event: object) -> None:
            """Do nothing."""

    listener = Listener()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


def compile_first(rehearsals: Iterable[str]) -> None:
    """Compile what a command will call, unless that is done, by a process for each core, and show its progress.

    Errors are left to the command that calls what cannot be compiled.

    Args:
        rehearsals: As `compile_ahead` takes them.
    """
    with suppress(PluginError):
        compile_all(rehearsals)


def compile_all(rehearsals: Iterable[str], processes: int | None = None) -> bool:
    """Compile like `compile_first`, and return whether there was anything to do.

    Raises:
        PluginError: If something could not be compiled.
    """
    from ..cluster.kernels.ahead import compile_ahead, unplayed_rehearsals

    if not (names := unplayed_rehearsals(rehearsals)):
        return False
    with _compiling_progress() as show:
        compile_ahead(names, show, processes)
    return True


@contextmanager
def _compiling_progress() -> Iterator[Callable[["CompileProgress"], None]]:
    """Show how much is compiled: a bar, or a line now and then where standard error is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    to = console(stderr=True)
    if not to.is_terminal:
        with StatusLines(lambda line: to.print(f"{line} ...")) as lines:
            lines.show(COMPILING)
            yield lambda compiled: lines.replace_last(
                f"{COMPILING}: {compiled.done} of {compiled.all} kernels {compiled.now}".rstrip()
            )
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=to) as bar:
        task = bar.add_task(COMPILING, total=None)
        yield lambda compiled: bar.update(
            task, completed=compiled.done, total=compiled.all or None, description=f"{COMPILING}: {compiled.now}"
        )


@contextmanager
def training_progress(steps: int) -> Iterator[Callable[["TrainingProgress"], None]]:
    """Show how far training is: a bar, or a line for each update where standard error is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    to, first = console(stderr=True), "getting ready, which runs the heuristics ..."
    if not to.is_terminal:
        to.print(first)
        with reporting_compilation(to.print, _rate_limited(to.print)):
            yield lambda trained: to.print(f"{100 * min(1.0, trained.steps / steps):3.0f} %  {_trained_text(trained)}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=to) as bar:
        task = bar.add_task(first, total=steps)

        def show(text: str) -> None:
            bar.update(task, description=text)

        with reporting_compilation(show, show):
            yield lambda trained: bar.update(task, completed=trained.steps, description=_trained_text(trained))


def _rate_limited(write: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that writes a line unless it just wrote one."""
    last_s = time.monotonic()

    def write_rarely(text: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= REPEAT_S:
            last_s = time.monotonic()
            write(text)

    return write_rarely


@contextmanager
def download_progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show how much has arrived: a bar, or a line now and then where standard error is no terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    to, text = console(stderr=True), f"downloading {name}"
    if not to.is_terminal:
        with StatusLines(lambda line: to.print(f"{line} ...")) as lines:
            first = iter([lines.show])
            yield lambda have, total: next(first, lines.replace_last)(f"{text}, {_received_text(have, total)}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=to) as bar:
        task = bar.add_task(text, total=None, visible=False)
        yield lambda have, total: bar.update(task, completed=have, total=total, visible=True)


def _received_text(have: int, total: int | None) -> str:
    return f"{have:,} of {total:,} bytes" if total else f"{have:,} bytes"


def _trained_text(trained: "TrainingProgress") -> str:
    score = f", {trained.score.percent:+.1f} % against {trained.rival}" if trained.score else ""
    steps = f"{trained.steps / 1e6:.2f} M" if trained.steps >= 1e6 else f"{trained.steps:,}"
    return f"{steps} steps, {trained.steps_per_s:,.0f}/s{score}"
