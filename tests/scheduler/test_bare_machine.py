"""A machine that lacks what programs take for granted: a scheduler serves there, its jobs run, and commands answer.

As a container has it under any user id: no passwd entry, no home, no folder for temporary files, a host name that
nobody resolves, a locale and a time zone that there are not, and few files that may be open.
"""

import os
import pwd
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longshore.cluster.files.processes import free_port
from longshore.scheduler.backends.local.ranks import user_variables
from longshore.scheduler.backends.shared_folder.node import sweep
from tests.scheduler.served import LONGSHORE, Served, until
from tests.support import processes

UID = 54321
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # or all kernels would be compiled anew
KEPT = {name: os.environ[name] for name in ("NUMBA_CACHE_DIR", processes.MARK) if name in os.environ}
WHOLE = {
    "PATH": os.defpath, "XDG_CACHE_HOME": CACHE, "TMPDIR": tempfile.gettempdir(), "LC_ALL": "C.UTF-8",
    "TZ": "UTC", **KEPT,
}  # fmt: skip
# What a machine may lack: how the environment says so, or what is done before the scheduler begins.
VARIABLES = {
    "home": ("HOME", None), "temporary folder": ("TMPDIR", "/nonexistent"), "locale": ("LC_ALL", "xx_YY.nothing"),
    "time zone": ("TZ", "No/Where"),
}  # fmt: skip
STEPS = {"host name": "hostname nowhere.invalid", "open files": "ulimit -n 256"}
ALL = ("passwd entry", *VARIABLES, "host name", "open files")
LOCALES = ({"LANG": "C"}, {"LC_ALL": "POSIX"}, {"LC_ALL": "xx_YY.nothing"}, {"LANG": "", "TZ": ":/nonexistent"})
SPACE = ["unshare", "--user", "--map-root-user", "--uts", "--mount"]
NO_NAME = ["--user", f"--map-user={UID}", f"--map-group={UID}"]
PROCESSES = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
PROGRAM = "import getpass; print(getpass.getuser(), 'ä')"
JOB = f'test -d "$HOME" -a -w "$HOME" && echo "$USER $LOGNAME" && {shlex.join([sys.executable, "-c", PROGRAM])}'


class ServedBare(Served):
    """A scheduler on such a machine.

    Args:
        folder: Where it is started.
        lacks: What the machine has not.
    """

    def __init__(self, folder: Path, *lacks: str) -> None:
        super().__init__(folder)
        self.lacks = lacks
        self.user = str(UID) if "passwd entry" in lacks else "root"

    def start(self) -> None:
        """Start it as the first process of its own PID namespace."""
        changes = [VARIABLES[it] for it in self.lacks if it in VARIABLES]
        environment = {**WHOLE, "HOME": str(self.folder), **dict(changes)}
        serve = ["env", "-i", *(f"{name}={value}" for name, value in environment.items() if value is not None)]
        serve += [*LONGSHORE, "serve", "--port", str(self.port)]
        if self.user == "root":
            serve.append("--as-root")
        apart = [*PROCESSES, *(NO_NAME if self.user != "root" else ())]
        limited = [STEPS[it] for it in self.lacks if it in STEPS] + [f"exec {shlex.join([*apart, *serve])}"]
        with (self.folder / "serve.log").open("ab") as log:
            line = [*SPACE, "sh", "-c", " && ".join(limited)]
            self.process = processes.start(line, cwd=self.folder, stdin=processes.DEVNULL, stdout=log, stderr=log)
        token = self.folder / ".longshore" / "token"
        until(lambda: token.exists() or self.process is None or self.process.poll() is not None)
        self.environment["LONGSHORE_TOKEN"] = token.read_text().strip()  # without a home nothing leads to it
        until(self.answers)


@contextmanager
def served_without(folder: Path, *lacks: str) -> Iterator[ServedBare]:
    """Let a scheduler serve on a machine that lacks something."""
    tried = processes.run([*SPACE, *PROCESSES, *NO_NAME, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no user without a name can be made here: {tried.stderr.strip()}")
    it = ServedBare(folder, *lacks)
    try:
        it.start()
        yield it
    finally:
        if it.process is not None:
            it.process.kill()  # unshare heeds nothing else; all in its PID namespace ends with it
            it.process.wait(60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBare]:
    with served_without(tmp_path_factory.mktemp("bare"), *ALL) as it:
        yield it


@pytest.fixture(scope="module")
def job(served: ServedBare) -> str:
    return ended_job(served)


def ended_job(served: ServedBare) -> str:
    """Return a job that ended there."""
    added = served.add("sh", "-c", JOB)
    assert served.ended(added) == "succeeded", served.ask(f"/v1/jobs/{added}")["cause"]
    return added


def test_a_job_runs_there_with_a_home_and_a_name(served: ServedBare, job: str) -> None:
    assert served.call("logs", job).stdout == f"{UID} {UID}\n{UID} ä\n"


@pytest.mark.full
@pytest.mark.parametrize("lack", ["nothing", *ALL])
def test_a_job_runs_where_one_thing_is_missing(lack: str, tmp_path: Path) -> None:
    with served_without(tmp_path, lack) as served:
        user = served.user
        assert served.call("logs", ended_job(served)).stdout == f"{user} {user}\n{user} ä\n"


APART = pytest.mark.parametrize("apart", [[], ["--pid", "--fork"]], ids=["no /proc", "that of another PID namespace"])


def without_processes(apart: list[str], line: list[str], folder: Path) -> "processes.CompletedProcess[str]":
    """Run a command where /proc shows no process of its own; the test is skipped where that cannot be had."""
    steps = [] if apart else ["mount -t tmpfs none /proc"]
    inside = " && ".join([*steps, f"exec {shlex.join(line)}"])
    unshared = ["unshare", "--user", "--map-root-user", "--mount", *apart, "sh", "-c", inside]
    done = processes.run(unshared, cwd=folder, capture_output=True, check=False)
    if done.stderr.startswith("unshare"):
        pytest.skip(f"no folder can be mounted here: {done.stderr.strip()}")
    return done


@pytest.mark.full
@APART
@pytest.mark.parametrize("command", ["serve --as-root --port PORT", "node agent --node n --fence"])
def test_where_no_process_can_be_seen_it_is_said(apart: list[str], command: str, tmp_path: Path) -> None:
    words = command.replace("PORT", str(free_port())).split()
    done = without_processes(apart, [*LONGSHORE, *words], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "/proc" in done.stderr.splitlines()[-1]


@pytest.mark.full
@APART
def test_a_supervisor_there_marks_no_attempt_as_its_own(apart: list[str], tmp_path: Path) -> None:
    """Else it would name a process of another namespace, which others would kill."""
    (tmp_path / "attempt").mkdir()
    program = f"from {sweep.__module__} import sweep; sweep({str(tmp_path / 'attempt')!r}, '0')"
    done = without_processes(apart, [sys.executable, "-c", program], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "ProcessLookupError: /proc does not show this process"
    assert [it.name for it in (tmp_path / "attempt/part-0").iterdir()] == []


@pytest.mark.few(1)
@pytest.mark.parametrize("lacks", LOCALES, ids=str)
def test_a_command_answers_in_any_locale(served: Served, job: str, lacks: dict[str, str]) -> None:
    environment = {"PATH": os.defpath, **served.environment, "LONGSHORE_URL": served.url, **lacks}
    line = [*LONGSHORE, "logs", job]
    done = processes.run(line, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[:1]) == (0, "", [f"{UID} {UID}"])


@pytest.mark.parametrize("known", ["no passwd entry", "/nonexistent", "not to be written to", "a home"])
@pytest.mark.parametrize("reported", [None, "", "/nonexistent", "relative", "a home"])
def test_home_is_the_first_that_can_be_written_to(
    known: str, reported: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = {it: str(tmp_path / it) for it in ("of passwd", "of environment", "not to be written to")}
    for home in homes.values():
        Path(home).mkdir()
    (tmp_path / "relative").mkdir()
    monkeypatch.chdir(tmp_path)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "not to be" not in str(path) and real(path, mode))

    def entry(_uid: int) -> pwd.struct_passwd:
        if known == "no passwd entry":
            raise KeyError("getpwuid(): uid not found")
        home = {"a home": homes["of passwd"]}.get(known, homes.get(known, known))
        return pwd.struct_passwd(("ada", "x", UID, UID, "", home, "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", entry)
    monkeypatch.delenv("HOME", raising=False) if reported is None else monkeypatch.setenv(
        "HOME", homes["of environment"] if reported == "a home" else reported
    )
    found = user_variables(str(tmp_path / "attempt"))
    expected = homes["of environment"] if reported == "a home" else str(tmp_path / "attempt" / "home")
    assert found["HOME"] == (homes["of passwd"] if known == "a home" else expected)
    assert Path(found["HOME"]).is_dir()
    assert {found["USER"], found["LOGNAME"]} == {str(os.getuid()) if known == "no passwd entry" else "ada"}
