"""URLs that cannot be those of a scheduler."""

import pytest

from tests.command_line import Command


@pytest.mark.parametrize("url", ["http://host:abc", "http://[::1", "http://host:99999999", "http://a\x01b", "host", ""])
@pytest.mark.parametrize("command", [["queue"], ["status", "x"], ["logs", "x"], ["submit", "--", "x"], ["dashboard"]])
def test_a_command_refuses_it_in_one_line(
    longshore: Command, monkeypatch: pytest.MonkeyPatch, command: list[str], url: str
) -> None:
    monkeypatch.setenv("LONGSHORE_TOKEN", "ls_x")

    options = command if "--" not in command else command[: command.index("--")]
    done = longshore(*options, "--url", url, *command[len(options) :])

    assert done.status == 2
    assert done.err.startswith("longshore: ")
    assert done.err.count("\n") == 1
