"""How the command line behaves: help, usage errors, progress, Ctrl-C."""

import os
import re
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.markup import render

from longshore import cli
from longshore.commands.progress import StatusLines
from tests.checkout import HETERO64
from tests.command_line import COMMANDS, Command, command_of, process
from tests.support import processes


@pytest.mark.parametrize(
    "command",
    [
        "simulate",
        "simulate --cluster x --oder fifo",
        "simulate --cluster x --order lifo",
        "simulate --cluster x --load nan",
        "simulate --cluster x --load inf",
        "simulate --cluster x --sigma 1e300",
        "simulate --cluster x --ageing nan",
        "simulate --cluster x --ageing 72",
        "train --ageing -1h",
        "node agent --node n --every 0s",
        "submit --limit 0s -- x",
        "wait x --timeout 5",
        "simulate --cluster x --jobs 0",
        "simulate --cluster x --seed 99999999999999999999",
        "evaluate --workloads many",
        "evaluate --estimates guess",
        "evaluate --sigma 6",
        "train --steps nan",
        "trace inspect",
        "fly",
    ],
)
def test_wrong_usage_ends_with_2(longshore: Command, command: str) -> None:
    done = longshore(*command.split())
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("longshore: ")
    assert done.err.count("\n") == 1
    assert "see `longshore" in done.err
    assert "Input should be" not in done.err


GROUPS = sorted({name.rpartition(" ")[0] for name in COMMANDS} | {"node"})


@pytest.mark.few(21)
@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", [*GROUPS, *COMMANDS])
def test_every_command_explains_itself(longshore: Command, command: str, option: str) -> None:
    done = longshore(*command.split(), option)
    assert (done.status, done.err) == (0, "")
    assert f"Usage: longshore {command}".strip() in done.out
    if command in COMMANDS:
        assert f"Example: longshore {command}" in done.out


def test_help_lists_the_commands_under_titles(longshore: Command) -> None:
    shown = longshore("--help").out
    assert all(f"─ {title} ─" in shown for title in cli.HELP_PANELS)
    assert "─ Commands ─" not in shown
    assert sum(map(len, cli.HELP_PANELS.values())) < 25


@pytest.mark.parametrize("command", [*GROUPS, *COMMANDS])
def test_no_help_is_taken_for_markup(command: str) -> None:
    found: Any = command_of(command.split())[0]
    texts = [found.help, found.epilog, found.short_help, *(getattr(each, "help", None) for each in found.params)]
    for text in filter(None, texts):
        assert render(text).plain == text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_with_options_that_it_has(name: str) -> None:
    program, *words = shlex.split(COMMANDS[name].example.partition(" && ")[0])
    command, rest = command_of(words)
    assert program == "longshore"
    assert words[: len(words) - len(rest)] == name.split()
    with command.make_context(name, rest) as context:
        assert context.args == []


def test_the_version_is_shown(longshore: Command) -> None:
    assert longshore("--version").out.startswith("Longshore 0.")


def test_help_is_instant_because_it_imports_nothing_heavy() -> None:
    code = """
import sys
import threading
from longshore.cli import main
sys.argv = ["longshore", "--help"]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = processes.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "typer" in loaded
    assert not loaded & {"torch", "numba", "polars", "matplotlib", "pandas", "scipy", "stable_baselines3", "gymnasium"}


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_end_shows_in_the_status_and_without_a_traceback(number: int) -> None:
    command = process("evaluate", "--workloads", 3000)
    with processes.start(command, stdout=processes.PIPE, stderr=processes.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("running"):
                running.send_signal(number)
                break
        _, err = running.communicate()
    assert running.returncode == 128 + number
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "line",
    [
        ["submit", "--", "true"], ["submit", "job.yaml"], ["simulate", "--cluster", "c.yaml"],
        ["evaluate", "--trace", "x.csv"], ["train", "--steps", "10"], ["tune"], ["serve"],
        ["trace", "inspect", "x.csv"], ["trace", "plan", "x.csv"], ["plan", "find", "x.py", "--samples", "9"],
        ["store", "backup", "a.db"], ["config", "check", "x.yaml"], ["store", "decisions", "--out", "x"],
        ["preflight"], ["extender", "--cluster", "x.yaml"], ["plan", "run", "x.json", "x.py:build"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_folder_that_was_deleted_is_no_reason_for_a_traceback(
    line: list[str], tmp_path: Path, longshore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = longshore(*line)
    assert done.status == 2
    assert [each for each in done.err.splitlines() if each.startswith("longshore: ")]
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "line",
    [
        ["ring", "--seats", "1", "--no-warm", "--", "true"], ["preflight", "--slots", "--", "true"],
        ["preflight", "--sample", '["true"]', "--", "true"], ["stage", "-", "train.py:build"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_neither_is_it_for_what_runs_in_a_job(line: list[str], tmp_path: Path) -> None:
    gone = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-m", f"longshore.{line[0]}", *line[1:]]
    done = processes.run(gone, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith(f"longshore.{line[0]}: the folder in which this was called")


def test_a_reader_that_leaves_early_is_no_error_to_read_about() -> None:
    command = process("policy", "list")
    with processes.start(command, stdout=processes.PIPE, stderr=processes.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""


@pytest.mark.full
def test_compiling_is_reported_only_when_it_happens(tmp_path: Path) -> None:
    code = """
from longshore.commands.progress import reporting_compilation
from kernels import double
with reporting_compilation(lambda text: print(text.partition(":")[0]), lambda text: None):
    double(1.0), double(2)
"""
    kernel = "from numba import njit\n@njit(cache=True)\ndef double(x): return 2 * x\n"
    (tmp_path / "kernels.py").write_text(kernel)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    printed = [
        processes.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert [bool(once) and once.startswith("compiling") for once in printed] == [True, False]
    assert printed[0].count("\n") == 1


def test_progress_goes_line_by_line_where_there_is_no_terminal(longshore: Command) -> None:
    done = longshore("simulate", "--cluster", HETERO64, "--jobs", 5)
    shown = [line for line in done.err.splitlines() if not line.startswith("compiling") and "so far" not in line]
    assert shown == ["starting ...", "reading the input ...", "simulating 5 jobs under pack ..."]
    assert "..." not in done.out


def test_what_takes_long_is_reported_again_with_its_time_until_something_else_begins() -> None:
    printed, again = list[str](), threading.Event()

    def write(text: str) -> None:
        printed.append(text)
        if text.endswith("so far"):
            again.set()

    with StatusLines(write, every_s=0.01) as lines:
        for text in ("first", "second"):
            again.clear()
            lines.show(text)
            assert again.wait(60.0)

    assert printed[0] == "first"
    assert all(re.fullmatch(r"(first|second)(, \d+ s so far)?", text) for text in printed)
    assert printed.index("second") > 1
    assert not any(thread.name == "progress" for thread in threading.enumerate())
