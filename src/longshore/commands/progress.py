"""What a command says while it works, on standard error, and the console that its figures go to."""

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

    from ..cluster.kernels.ahead import Stand as Compiled
    from ..training.run_folder import Progress as Stand

PIPE_COLUMNS = 160  # of output that goes to no terminal: wide enough for every table in one piece
COMPILING = "compiling, once after an install or upgrade"
AGAIN_S = 1.5  # of silence on a pipe, after which what is being done is said again


def console(*, stderr: bool = False) -> "Console":
    """Return standard output, or standard error, in which names and paths are shown as they are."""
    from rich.console import Console

    found = Console(markup=False, highlight=False, emoji=False, stderr=stderr)
    if not found.is_terminal:
        found.width = PIPE_COLUMNS
    return found


class Lines:
    """Lines on what is being done. One that stays the last for long is said again, with the time it took so far.

    Args:
        say: Writes a line.
        every_s: Seconds of silence after which it is said again.
    """

    def __init__(self, say: Callable[[str], None], every_s: float = AGAIN_S) -> None:
        self._say, self._every_s = say, every_s
        self._last, self._since = "", 0.0
        self._told, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._say_again, name="progress", daemon=True)

    def tell(self, text: str) -> None:
        """Say what begins."""
        self._last, self._since = text, time.monotonic()
        self._say(text)
        self._told.set()

    def note(self, text: str) -> None:
        """Say this in place of what began, the next time that it is said again."""
        self._last = text

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._told.set()
        self._thread.join()

    def _say_again(self) -> None:
        while not self._ends.is_set():
            if self._told.wait(self._every_s):
                self._told.clear()
            elif self._last:
                self._say(f"{self._last}, {time.monotonic() - self._since:.0f} s so far")


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
        with Lines(lambda text: to.print(f"{in_one_line(text)} ...")) as lines:
            lines.tell(first)
            with telling_of_compiling(lines.tell, lines.note):
                yield lines.tell
        return
    with to.status(Text(f"{in_one_line(first)} ...")) as status:

        def show(text: str) -> None:
            status.update(Text(f"{in_one_line(text)} ..."))

        with telling_of_compiling(show, show):
            yield show


@contextmanager
def telling_of_compiling(tell: Callable[[str], None], note: Callable[[str], None]) -> Iterator[None]:
    """Tell that something is compiled, when that begins; kernels that were kept from an earlier run are not.

    Args:
        tell: Is given the text at the first kernel.
        note: Is given it at all others, with how many there were.
    """
    from numba.core import event

    class Listener(event.Listener):
        """Hears of each kernel."""

        kernels = 0

        def on_start(self, event: Any) -> None:
            """Take note that a kernel is being compiled."""
            self.kernels += 1
            says = tell if self.kernels == 1 else note
            says(f"{COMPILING}: {event.data['dispatcher'].py_func.__name__}, kernel {self.kernels}")

        def on_end(self, event: object) -> None:
            """Take no note."""

    listener = Listener()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


def compile_first(rehearsals: Iterable[str]) -> None:
    """Compile what a command will call, unless that was done, by a process for each core, and show how far that is.

    What cannot be compiled is told by the command itself, once it calls it.

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
    from ..cluster.kernels.ahead import compile_ahead, missing

    if not (names := missing(rehearsals)):
        return False
    with _compiling_progress() as tell:
        compile_ahead(names, tell, processes)
    return True


@contextmanager
def _compiling_progress() -> Iterator[Callable[["Compiled"], None]]:
    """Show how much is compiled: a bar, or a line now and then where standard error is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    to = console(stderr=True)
    if not to.is_terminal:
        with Lines(lambda line: to.print(f"{line} ...")) as lines:
            lines.tell(COMPILING)
            yield lambda stand: lines.note(f"{COMPILING}: {stand.done} of {stand.all} kernels {stand.now}".rstrip())
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=to) as bar:
        task = bar.add_task(COMPILING, total=None)
        yield lambda stand: bar.update(
            task, completed=stand.done, total=stand.all or None, description=f"{COMPILING}: {stand.now}"
        )


@contextmanager
def training_progress(steps: int) -> Iterator[Callable[["Stand"], None]]:
    """Show how far training is: a bar, or a line for each update where standard error is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    to, first = console(stderr=True), "getting ready, which runs the heuristics ..."
    if not to.is_terminal:
        to.print(first)
        with telling_of_compiling(to.print, _now_and_then(to.print)):
            yield lambda stand: to.print(f"{100 * min(1.0, stand.steps / steps):3.0f} %  {_stand_text(stand)}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=to) as bar:
        task = bar.add_task(first, total=steps)

        def show(text: str) -> None:
            bar.update(task, description=text)

        with telling_of_compiling(show, show):
            yield lambda stand: bar.update(task, completed=stand.steps, description=_stand_text(stand))


def _now_and_then(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return what says a line unless it just said one."""
    last_s = time.monotonic()

    def says(text: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= AGAIN_S:
            last_s = time.monotonic()
            say(text)

    return says


@contextmanager
def download_progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show how much has come: a bar, or a line now and then where standard error is no terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    to, text = console(stderr=True), f"downloading {name}"
    if not to.is_terminal:
        with Lines(lambda line: to.print(f"{line} ...")) as lines:
            told = iter([lines.tell])  # it is said once that it begins
            yield lambda have, total: next(told, lines.note)(f"{text}, {_share(have, total)}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=to) as bar:
        task = bar.add_task(text, total=None, visible=False)
        yield lambda have, total: bar.update(task, completed=have, total=total, visible=True)


def _share(have: int, total: int | None) -> str:
    return f"{have:,} of {total:,} bytes" if total else f"{have:,} bytes"


def _stand_text(stand: "Stand") -> str:
    score = f", {stand.score.percent:+.1f} % against {stand.rival}" if stand.score else ""
    steps = f"{stand.steps / 1e6:.2f} M" if stand.steps >= 1e6 else f"{stand.steps:,}"
    return f"{steps} steps, {stand.steps_per_s:,.0f}/s{score}"
