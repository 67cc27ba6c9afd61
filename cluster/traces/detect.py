"""Finding the format of a trace, among ours and those that other packages register."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..files.errors import InputError, PluginError
from ..files.plugins import load, registered
from ..files.text import read_head, shown
from ..model.workload import Workload

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """What a module (or any object) must offer to be a trace format, under these names.

    Args:
        sniff: Is given the first 4,096 characters of a file and says whether the file is in this format; looks at as
            little as sets the format apart, so that `read` can name what is missing.
        read: Returns the jobs in seconds, or raises InputError with the line and column.
        times: How a file has its times, such as "in milliseconds"; may be left out. It is shown to who reads a file.
    """

    sniff: Callable[[str], bool]
    read: Callable[[Path], Workload]
    times: str = ""


def load_format(name: str) -> TraceFormat:
    """Import a format that is registered.

    Args:
        name: Its name.

    Raises:
        PluginError: If there is no such format, or its module does not import or lacks `sniff` or `read`.
    """
    loaded = load("traces", name)
    for function in ("sniff", "read"):
        if not callable(getattr(loaded, function, None)):
            raise PluginError(f"trace format {name!r} ({registered('traces')[name].value}) has no function {function}")
    return TraceFormat(loaded.sniff, loaded.read, str(getattr(loaded, "times", "")))


def format_words(name: str) -> str:
    """Return a format with how it has times: what a file is taken for may be wrong by a factor of 1000.

    Args:
        name: Of the format.

    Raises:
        PluginError: If there is no such format.
    """
    times = load_format(name).times
    return f"{name} (times {times})" if times else name


def detect_format(path: Path) -> str:
    """Return the name of the format that a file is in.

    Args:
        path: The file.

    Raises:
        InputError: If the file cannot be read, or fits no format or several.
        PluginError: If a format does not import.
    """
    known, head = registered("traces"), read_head(path)
    fitting = [name for name in known if load_format(name).sniff(head)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        fix = "name one by --format; other commands read what `longshore trace convert --format` has written"
        raise InputError(f"it fits several formats: {', '.join(map(format_words, fitting))}", fix, path=path)
    problem = f"no format begins with {shown(head.strip().splitlines()[0])}; formats are {', '.join(known)}"
    raise InputError(problem, "see docs/formats.md for their columns", path=path, line=1)


def read_trace(path: Path, *, trace_format: str | None = None) -> Workload:
    """Read a trace, and log for what it is taken.

    Args:
        path: The file.
        trace_format: Name of its format; found from how the file begins if left out.

    Raises:
        InputError: If the file cannot be used.
        PluginError: If there is no such format, or its module does not do its part.
    """
    name = trace_format or detect_format(path)
    log.info("%s is read as %s", path, format_words(name))
    workload: object = load_format(name).read(path)
    if not isinstance(workload, Workload):
        value = registered("traces")[name].value
        raise PluginError(f"trace format {name!r} ({value}) gave {type(workload).__name__}, not a Workload")
    return workload
