"""The command line, in this process or as one of its own."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

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


def command_of(words: Sequence[str]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    """Return the command or group that words name, loaded, and the words behind its name."""
    command, rest = get_command(cli.app), list(words)
    while isinstance(command, TyperGroup) and rest:
        command = command.commands[rest.pop(0)]
    if isinstance(command, cli.UnloadedCommand):
        command = command.load()
    assert isinstance(command, TyperCommand | TyperGroup)
    return command, rest


def names_of(
    commands: Mapping[str, cli.CommandEntry | cli.CommandGroup], before: str = ""
) -> Iterator[tuple[str, cli.CommandEntry]]:
    """Yield all commands by their full names."""
    for name, each in commands.items():
        if isinstance(each, cli.CommandEntry):
            yield f"{before}{name}", each
        else:
            yield from names_of(each.commands, f"{before}{name} ")


COMMANDS = dict(pair for panel in cli.HELP_PANELS.values() for pair in names_of(panel))


def process(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "longshore", *map(str, arguments)]


def words_of(line: str, **places: object) -> list[str]:
    """Return the words of a line, with what stands in braces filled in: a path may have spaces."""
    return [word.format(**places) for word in line.split()]
