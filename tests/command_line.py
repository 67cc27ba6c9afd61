"""The command line, in this process or as one of its own."""

import sys
from typing import NamedTuple

import pytest

from longshore import cli


class Done(NamedTuple):
    status: int
    out: str
    err: str


class Command:
    """Runs the command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Done:
        self.monkeypatch.setattr(sys, "argv", ["longshore", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as end:
            return Done(int(end.code or 0), *self.capsys.readouterr())
        raise AssertionError("main returns only by SystemExit")


def process(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "longshore", *map(str, arguments)]


def words_of(line: str, **places: object) -> list[str]:
    """Return the words of a line, with what stands in braces filled in: a path may have spaces."""
    return [word.format(**places) for word in line.split()]
