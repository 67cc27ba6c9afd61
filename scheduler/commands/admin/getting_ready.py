"""What `serve` and `extender` do before they answer, and say meanwhile on standard error."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import typer

from ....cluster.files.errors import PluginError
from ....cluster.files.output_file import in_one_line

AGAIN_S = 1.5  # of silence, after which what is being done is said again
COMPILING = "compiling, once after an install or upgrade"


@contextmanager
def saying(text: str) -> Iterator[Callable[[str], None]]:
    """Say what is being done, and again every so often; yields what changes the words for that."""
    ended, last, began_s = threading.Event(), [text], time.monotonic()

    def say_again() -> None:
        while not ended.wait(AGAIN_S):
            typer.echo(f"{in_one_line(last[-1])} ..., {time.monotonic() - began_s:.0f} s so far", err=True)

    typer.echo(f"{in_one_line(text)} ...", err=True)
    thread = threading.Thread(target=say_again, name="saying", daemon=True)
    thread.start()
    try:
        yield last.append
    finally:
        ended.set()
        thread.join()


def compile_first(*policies: str | None) -> None:
    """Compile what decisions by these policies need, unless that was done: a live decision has no time for it.

    What others have made compiles what it needs in its own process, before it is asked anything.
    """
    from ....cluster.kernels.ahead import compile_ahead, missing
    from ....cluster.kernels.kept import can_be_kept
    from ...mirror.rehearsal import is_known, rehearsals_of

    names = missing(rehearsals_of(*(name for name in policies if name is not None and is_known(name))))
    if not names or not can_be_kept():
        return
    with saying(COMPILING) as say, suppress(PluginError):  # who uses it tells why it cannot be compiled
        compile_ahead(names, lambda stand: say(f"{COMPILING}: {stand.done} of {stand.all} kernels"))
