"""What users type behind `longshore submit`, and the errors that they read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from longshore.cluster.files.errors import InputError
from longshore.scheduler.commands.submitting import (
    _home_of,
    _spec_to_send,
    command_of,
    environment_of,
    file_of,
)
from tests.command_line import Command

JOB = "gpus: 2\nname: first\ncommand: [python, train.py]\n"
REFUSED = [
    ([], "write `longshore submit job.yaml`, or a command behind --"),
    (["tran.yaml"], "there is no file 'tran.yaml'; did you mean 'train.yaml'?"),
    (["train.yml"], "there is no file 'train.yml'; did you mean 'train.yaml'?"),
    (["jobs/abc"], "there is no file 'jobs/abc'; name a job file, or write a command behind --"),
    (["nowhere/job.json"], "there is no file 'nowhere/job.json'; name a job file"),
    (["jobs"], "'jobs' is a folder; name a job file, such as jobs/other.yaml"),
    (["."], "'.' is a folder; name a job file, such as broken.yaml"),
    ([""], "the name of the job file is empty"),
    (["-"], "- is no job file; name /dev/stdin"),
    (["true"], "'true' is a program, no job file; to run it: longshore submit -- true"),
    (["xyzzy"], "there is no file 'xyzzy'; name a job file, or write a command behind --"),
    (["http://example.org/job.yaml"], "there is no file 'http:"),
    (["python", "train.py"], "'python train.py' is no job file; if it is a command: longshore submit -- python"),
    (["sleep", "60"], "if it is a command: longshore submit -- sleep 60"),
    (["python", "train.py", "--lr", "0.1"], "No such option: --lr; options of a command go behind --"),
    (["train.yaml", "other.yaml"], "2 job files are named; submit one after the other"),
    (["train.yaml", "extra"], "'extra' behind the job file is not understood"),
    (["train.py"], "'train.py' is a program, no job file; to run it: longshore submit -- python train.py"),
    (["run.sh"], "longshore submit -- sh run.sh; docs/migrate.md"),
    (["script"], "'script' is a program, no job file; to run it: longshore submit -- "),
    (["empty.yaml"], "empty.yaml: the file is empty; docs/scheduler.md#job-files describes what it holds"),
    (["notes.txt"], "notes.txt:1: the file does not hold keys and values"),
    (["broken.yaml"], "broken.yaml:2: not YAML"),
    (["wrong.yaml"], "wrong.yaml:1:gpus: 'many' cannot be used; it should be a whole number from 1 to 1000000"),
    (["--gpus", "8"], "write `longshore submit job.yaml`"),
    (["--"], "there is no command behind --"),
    (["--", ""], "there is no command behind --"),
    (["--", "--gpus", "8"], "a command begins with a program, not with '--gpus'"),
    (["--", "LR=0.1", "python"], "'LR=0.1' is no program; write --env LR=0.1 before --"),
    (["--", "python train.py"], "'python train.py' is one word, and no program has this name"),
    (["train.yaml", "--", "-v"], "a command begins with a program, not with '-v'"),
    (["--gpus", "0", "--", "x"], "--gpus: '0' cannot be used; it should be a whole number from 1 to 1000000"),
    (["--gpus", "0", "train.yaml"], "--gpus: '0' cannot be used; it should be a whole number from 1 to 1000000"),
    (["--gpus", "two", "--", "x"], "Invalid value for '--gpus': it should be a whole number"),
    (["--name", "My Job", "--", "x"], "--name: 'My Job' cannot be used; it should be 1 to 40 small"),
    (["--priority", "5000", "train.yaml"], "--priority: '5000' cannot be used; it should be a whole number from -1000"),
    (["--estimate", "90", "--", "x"], "'90' has no unit; write 90s, 90m, 90h or 90d"),
    (["--estimate", "soon", "--", "x"], "'soon' is no duration; write 30s, 15m, 2h, 3d"),
    (["--limit", "0s", "--", "x"], "'0s' is too short or too long; write 1ms to 366d"),
    (["--limit", "9999d", "--", "x"], "'9999d' is too short or too long; write 1ms to 366d"),
    (["--env", "NOT_SET_HERE", "--", "x"], "--env: 'NOT_SET_HERE' is not set here; write NOT_SET_HERE=VALUE"),
    (["--env", "1A=x", "--", "x"], "--env 1A: the key '1A' cannot be used; it should be letters, digits and _"),
    (["--env", "=x", "--", "x"], "the key '' cannot be used"),
    (["--folder", "a\0b", "--", "x"], "--folder: "),
]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who tries things out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGSHORE_URL", "http://127.0.0.1:9")  # nobody may be asked
    (tmp_path / "jobs").mkdir()
    files = {
        "train.yaml": JOB, "other.yaml": JOB, "jobs/other.yaml": JOB, "train.py": "print()\n",
        "run.sh": "#!/bin/sh\n#SBATCH --time=1\n", "script": "#!/usr/bin/python\n", "empty.yaml": "",
        "notes.txt": "hello\n", "broken.yaml": "a: [1\nb: }", "wrong.yaml": "gpus: many\ncommand: [x]\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.few(21)
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("words", "problem"), REFUSED)
def test_what_is_no_job_is_refused_in_one_line(longshore: Command, words: list[str], problem: str) -> None:
    done = longshore("submit", *words)

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("longshore: ")
    assert done.err.count("\n") == 1
    assert problem in done.err


@pytest.mark.usefixtures("here")
def test_all_problems_of_the_options_are_printed_at_once(longshore: Command) -> None:
    done = longshore("submit", "--gpus", "0", "--name", "A B", "--", "x")

    assert [line.split(":")[1].strip() for line in done.err.splitlines()] == ["--name", "--gpus"]


def test_a_job_file_may_have_any_name_and_be_json(here: Path) -> None:
    (here / "job").write_text('{"command": ["x"]}')

    assert file_of(["job"]) == Path("job")
    assert file_of(["train.yaml"]) == Path("train.yaml")
    assert file_of([]) is None


def test_a_command_is_taken_as_it_stands_behind_the_dashes() -> None:
    assert command_of(["python", "train.py", "--", "-x"]) == ["python", "train.py", "--", "-x"]
    assert command_of(None) is None


def test_variables_are_set_or_taken_over() -> None:
    assert environment_of(["A=1", "B=x=y", "C=", "HOME"], {"HOME": "/home/me"}) == {
        "A": "1", "B": "x=y", "C": "", "HOME": "/home/me",
    }  # fmt: skip
    assert environment_of([], {}) is None


ODD = os.fsdecode(b"jos\xe9")  # Latin-1, as older systems write names


def spec_of(file: Path | None = None, **given: object) -> dict[str, Any]:
    def planned(*_: object) -> dict[str, Any]:
        raise AssertionError("no plan")

    return _spec_to_send(file, {"command": ["x"], **given}, planned)


@pytest.mark.parametrize(
    ("path", "sent"),
    [(f"/home/{ODD}/bin:/usr/bin", "/usr/bin"), (f"/a:{ODD}:/b:", "/a:/b:"), (ODD, ""), ("/ä:/b", "/ä:/b")],
)
def test_programs_are_searched_in_the_folders_whose_names_can_be_sent(
    here: Path, monkeypatch: pytest.MonkeyPatch, path: str, sent: str
) -> None:
    monkeypatch.setenv("PATH", path)

    for spec in (spec_of(), spec_of(here / "train.yaml")):
        assert spec["environment"]["PATH"] == sent
        json.dumps(spec, ensure_ascii=False).encode()


def test_a_folder_whose_name_cannot_be_sent_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = here / ODD
    odd.mkdir()
    (odd / "job.yaml").write_text(JOB)
    with pytest.raises(InputError):
        spec_of(odd / "job.yaml")
    monkeypatch.chdir(odd)
    with pytest.raises(InputError):
        spec_of()
    assert spec_of(folder="/srv")["folder"] == "/srv"


def test_a_job_file_that_is_an_open_file_or_a_pipe_starts_in_the_present_folder(here: Path) -> None:
    reads, writes = os.pipe()
    os.mkfifo(here / "jobs" / "pipe")
    with (here / "jobs" / "other.yaml").open() as regular:
        (here / "jobs" / "stdin").symlink_to(f"/proc/self/fd/{regular.fileno()}")
        for name in (
            f"/dev/fd/{regular.fileno()}",
            f"/proc/self/fd/{reads}",
            here / "jobs" / "stdin",
            here / "jobs" / "pipe",
        ):
            assert _home_of(Path(name)) == here
        (here / "jobs" / "link.yaml").symlink_to("other.yaml")
        for name in ("jobs/other.yaml", "jobs/link.yaml", here / "jobs" / "other.yaml"):
            assert _home_of(Path(name)) == here / "jobs"
    assert _home_of(None) == here
    os.close(reads)
    os.close(writes)
