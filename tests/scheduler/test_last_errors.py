"""The error by which a rank's log says why it ended: of real programs, and of logs that anybody may have written."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.processes import (
    LOG_TAIL_BYTES,
    MAX_ERROR_CHARACTERS,
    last_error_in_log,
    last_error_in_text,
)
from tests.support import processes

# As PyTorch tells of the error of a rank.
RANK = r"print('[rank0]: Traceback (most recent call last):\n[rank0]:   File x, line 3\n[rank0]: ValueError: nan')"
FAILING = {
    "import no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    "raise ValueError('first\\nsecond')": "ValueError: first",
    "def f(:": "SyntaxError: invalid syntax",
    "class Stop(Exception): pass\nraise Stop": "Stop",
    "try:\n  1/0\nexcept Exception as error:\n  raise KeyError('a') from error": "KeyError: 'a'",
    "print('all is well'); raise SystemExit(3)": "",
    "print('Traceback (most recent call last):')": "",
    "raise RuntimeError('\\x1b[31mred\\x07')": "RuntimeError:  [31mred",
    RANK: "ValueError: nan",
}


@pytest.mark.parametrize("code", FAILING)
def test_the_error_of_a_program_is_the_line_of_its_exception(tmp_path: Path, code: str) -> None:
    log = tmp_path / "log"
    (tmp_path / "it.py").write_text(code)
    with log.open("wb") as output:
        output.write(b"ValueError: of another program before it\n")
        output.flush()
        since = output.tell()
        processes.run([sys.executable, "it.py"], cwd=tmp_path, stdout=output, stderr=output, check=False)
    found = last_error_in_log(str(log), since=since)
    assert found == FAILING[code]


@pytest.mark.parametrize("given", ["no-such-script.py", "-mno_such_module"])
def test_a_script_that_cannot_be_begun_is_named(tmp_path: Path, given: str) -> None:
    log, python = tmp_path / "log", tmp_path / "a folder" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    with log.open("wb") as output:
        processes.run([python, given], cwd=tmp_path, stdout=output, stderr=output, check=False)
    assert given.removeprefix("-m") in last_error_in_log(str(log))


@given(st.text())
def test_whatever_a_log_holds_a_terminal_may_show_what_is_taken_from_it(text: str) -> None:
    for log in (text, f"Traceback (most recent call last):\n{text}", f"longshore: the ring is lost: {text}"):
        found = last_error_in_text(log)
        assert len(found) <= MAX_ERROR_CHARACTERS
        assert found == "" or found.isprintable()


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ValueError: long ago\n" + "x\n" * LOG_TAIL_BYTES)
    assert last_error_in_log(str(log)) == ""
    with log.open("a") as output:
        output.write("ValueError: " + "y" * 1000 + "\n")
    assert (
        last_error_in_log(str(log)) == ("ValueError: " + "y" * MAX_ERROR_CHARACTERS)[: MAX_ERROR_CHARACTERS - 3] + "..."
    )


def test_what_is_no_log_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("ValueError: not for you\n")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "folder", "none"):
        assert last_error_in_log(str(tmp_path / name)) == ""
