"""The family of errors that Longshore raises for what the outside did.

LongshoreError
├── InputError       a file, row, option or value that cannot be used
│   ├── ManyProblemsError  several of them at once
│   └── EndlessError       faults so frequent that jobs would never end
├── PluginError      a policy, trace reader or back end that cannot be found or misbehaves
├── CheckpointError  a checkpoint that is damaged or was made for something else
└── BackendError     a system that Longshore drives does not do its part
"""

import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

MAX_ERROR_TEXT = 300  # characters


class LongshoreError(Exception):
    """Any error that the outside caused; the command line prints it in one line and exits with 2."""


class InputError(LongshoreError):
    """Input that cannot be used; the message names the place, the value and what to do.

    Args:
        problem: What is wrong, with the value seen.
        fix: What the reader of the message can do about it.
        path: The file, if there is one.
        line: One-based line in the file.
        field: Column, key or option.
    """

    most = 500  # characters of each part of the message: what is quoted may be as long as the input

    def __init__(
        self, problem: str, fix: str = "", *, path: Path | str | None = None, line: int | None = None, field: str = ""
    ) -> None:
        problem, fix, field = (
            part if len(part) <= self.most else f"{part[: self.most]}..." for part in (problem, fix, field)
        )
        self.problem, self.fix, self.path, self.line, self.field = problem, fix, path, line, field
        place = ":".join(str(part) for part in (path, line, field) if part not in (None, ""))
        super().__init__((f"{place}: " if place else "") + problem + (f"; {fix}" if fix else ""))


class ManyProblemsError(InputError):
    """All that is wrong with one input; the message has a line for each.

    Args:
        errors: Two or more.
    """

    most = 100_000

    def __init__(self, errors: Sequence[InputError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


def raise_all(errors: Iterable[InputError]) -> None:
    """Raise errors as one, if there are any.

    Raises:
        InputError: The only one.
        ManyProblemsError: All of them.
    """
    found = tuple(errors)
    if found:
        raise found[0] if len(found) == 1 else ManyProblemsError(found)


class EndlessError(InputError):
    """Faults so frequent that jobs would never end."""


class PluginError(LongshoreError):
    """A policy, trace reader or back end that cannot be found or misbehaves."""


class CheckpointError(LongshoreError):
    """A checkpoint that is damaged or was made for something else."""


class BackendError(LongshoreError):
    """A system that Longshore drives does not do its part."""


def error_line(error: BaseException) -> str:
    """Return what an error is in one line: its class, its words, and where it was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    words = f"{type(error).__name__}{': ' if lines else ''}{lines[0].strip()[:MAX_ERROR_TEXT] if lines else ''}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{words} ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else words
