"""Finding the format of a trace, among ours and those that other packages register."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ..files.errors import InputError, PluginError
from ..files.text import read_head, shown
from ..model.workload import Workload

GROUP = "longshore.traces"


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """What a module (or any object) must offer to be a trace format, under these names.

    Args:
        sniff: Is given the first 4,096 characters of a file and says whether the file is in this format; looks at as
            little as sets the format apart, so that `read` can name what is missing.
        read: Returns the jobs in seconds, or raises InputError with the line and column.
    """

    sniff: Callable[[str], bool]
    read: Callable[[Path], Workload]


def registered_formats() -> dict[str, str]:
    """Return the name and the module of every format that an installed package registers, sorted by name.

    Raises:
        PluginError: If two packages register different modules under one name.
    """
    formats: dict[str, str] = {}
    for entry in sorted(entry_points(group=GROUP)):
        if formats.setdefault(entry.name, entry.value) != entry.value:
            taken = formats[entry.name]
            raise PluginError(f"trace format {entry.name!r} is both {taken} and {entry.value}; uninstall one")
    return formats


def load_format(name: str, formats: Mapping[str, str] | None = None) -> TraceFormat:
    """Import a format.

    Args:
        name: Its name.
        formats: Module of each name; what is registered if left out.

    Raises:
        PluginError: If there is no such format, or its module does not import or lacks `sniff` or `read`.
    """
    known = registered_formats() if formats is None else formats
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "there are " + ", ".join(known)
        raise PluginError(f"no trace format is called {name!r}; {hint}")
    try:
        loaded = EntryPoint(name, known[name], GROUP).load()
    except (ImportError, AttributeError) as error:
        raise PluginError(f"trace format {name!r} ({known[name]}) does not import: {error}") from error
    for function in ("sniff", "read"):
        if not callable(getattr(loaded, function, None)):
            raise PluginError(f"trace format {name!r} ({known[name]}) has no function {function}")
    return TraceFormat(loaded.sniff, loaded.read)


def detect_format(path: Path, formats: Mapping[str, str] | None = None) -> str:
    """Return the name of the format that a file is in.

    Args:
        path: The file.
        formats: Module of each name; what is registered if left out.

    Raises:
        InputError: If the file cannot be read, or fits no format or several.
        PluginError: If a format does not import.
    """
    known = registered_formats() if formats is None else formats
    head = read_head(path)
    fitting = [name for name in known if load_format(name, known).sniff(head)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(f"it fits several formats: {', '.join(fitting)}", "name one of them", path=path)
    problem = f"no format begins with {shown(head.strip().splitlines()[0])}; formats are {', '.join(known)}"
    raise InputError(problem, "see docs/formats.md for their columns", path=path, line=1)


def read_trace(path: Path, *, trace_format: str | None = None, formats: Mapping[str, str] | None = None) -> Workload:
    """Read a trace.

    Args:
        path: The file.
        trace_format: Name of its format; found from how the file begins if left out.
        formats: Module of each name; what is registered if left out.

    Raises:
        InputError: If the file cannot be used.
        PluginError: If there is no such format, or its module does not do its part.
    """
    known = registered_formats() if formats is None else formats
    name = trace_format or detect_format(path, known)
    workload: object = load_format(name, known).read(path)
    if not isinstance(workload, Workload):
        raise PluginError(f"trace format {name!r} ({known[name]}) gave {type(workload).__name__}, not a Workload")
    return workload
