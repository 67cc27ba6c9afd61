"""Texts that cannot be passed to a program are refused; the value of a variable, which may be secret, is not shown."""

from pathlib import Path

import pytest

from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import Attempt, RefusedError, refuse_bad_texts
from tests.scheduler.backends.attempts import NODES, ONE_GPU

ODD = "hunter2\0"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"command": ("sh", ODD)}, True),
        ({"folder": ODD}, True),
        ({"environment": {ODD: "x"}}, True),
        ({"environment": {"TOKEN": ODD}}, False),
        ({"environment": {"TOKEN": "hunter2\ud800"}}, False),
        ({"environment": {"a=b": "hunter2"}}, False),
        ({"environment": {"": "hunter2"}}, False),
    ],
)
def test_what_cannot_be_passed_is_refused_without_values_of_variables(
    fields: dict[str, object], *, shown: bool
) -> None:
    given: dict[str, object] = {"command": ("sh",), "folder": "", "environment": {}, **fields}
    with pytest.raises(RefusedError) as raised:
        refuse_bad_texts(Attempt("ls-job-1", "job", 1, **given))  # type: ignore[arg-type]
    assert ("hunter2" in str(raised.value)) is shown


@pytest.mark.parametrize("command", ["no-such-program", "./no-such-program", "/no/such/program"])
def test_a_program_that_does_not_exist_is_refused_without_values_of_variables(command: str, tmp_path: Path) -> None:
    environment = {"PATH": "/opt/hunter2", "TOKEN": "hunter2"}
    with pytest.raises(RefusedError) as raised:
        LocalBackend(tmp_path, NODES).launch(Attempt("ls-job-1", "job", 1, (command,), "", environment), ONE_GPU)
    assert "hunter2" not in str(raised.value)
