"""A machine that lacks what programs take for granted: a scheduler serves there, its jobs run, and commands answer.

As a container has it under any user id: no passwd entry, no home, no folder for temporary files, a host name that
nobody resolves, a locale and a time zone that there are not, and few files that may be open.
"""

import os
import pwd
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.backends.local.supervisor.rank import user_variables
from tests.scheduler.served import LONGSHORE, Served, until
from tests.support import processes

UID = 54321
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # or all kernels would be compiled anew
BARE = {
    "PATH": os.defpath, "XDG_CACHE_HOME": CACHE, "LC_ALL": "xx_YY.nothing", "TZ": "No/Where", "TMPDIR": "/nonexistent",
    **{name: os.environ[name] for name in ("NUMBA_CACHE_DIR", processes.MARK) if name in os.environ},
}  # fmt: skip
LOCALES = ({"LANG": "C"}, {"LC_ALL": "POSIX"}, {"LC_ALL": "xx_YY.nothing"}, {"LANG": "", "TZ": ":/nonexistent"})
SPACE = ["unshare", "--user", "--map-root-user", "--uts"]
USER = ["unshare", "--user", f"--map-user={UID}", f"--map-group={UID}", "--pid", "--fork", "--mount-proc"]
PROGRAM = "import getpass; print(getpass.getuser(), 'ä')"
JOB = f'touch "$HOME/kept" && echo "$USER $LOGNAME" && {shlex.join([sys.executable, "-c", PROGRAM])}'


class ServedBare(Served):
    """A scheduler on such a machine."""

    def start(self) -> None:
        """Start it as the first process of its own PID namespace."""
        serve = ["env", "-i", *(f"{name}={value}" for name, value in BARE.items()), *LONGSHORE, "serve"]
        serve += ["--port", str(self.port), *self.options]
        limited = f"hostname nowhere.invalid && ulimit -n 256 && exec {shlex.join([*USER, '--kill-child', *serve])}"
        with (self.folder / "serve.log").open("ab") as log:
            line = [*SPACE, "sh", "-c", limited]
            self.process = processes.start(line, cwd=self.folder, stdin=processes.DEVNULL, stdout=log, stderr=log)
        token = self.folder / ".longshore" / "token"
        until(lambda: token.exists() or self.process is None or self.process.poll() is not None)
        self.environment["LONGSHORE_TOKEN"] = token.read_text().strip()  # without a home nothing leads to it
        until(self.answers)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tried = processes.run([*SPACE, *USER, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no user without a name can be made here: {tried.stderr.strip()}")
    it = ServedBare(tmp_path_factory.mktemp("bare"))
    try:
        it.start()
        yield it
    finally:
        if it.process is not None:
            it.process.kill()  # unshare heeds nothing else; all in its PID namespace ends with it
            it.process.wait(60)


@pytest.fixture(scope="module")
def job(served: Served) -> str:
    added = served.add("sh", "-c", JOB)
    assert served.ended(added) == "succeeded", served.ask(f"/v1/jobs/{added}")["cause"]
    return added


def test_a_job_runs_there_with_a_home_and_a_name(served: Served, job: str) -> None:
    assert served.call("logs", job).stdout == f"{UID} {UID}\n{UID} ä\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("lacks", LOCALES, ids=str)
def test_a_command_answers_in_any_locale(served: Served, job: str, lacks: dict[str, str]) -> None:
    environment = {"PATH": os.defpath, **served.environment, "LONGSHORE_URL": served.url, **lacks}
    line = [*LONGSHORE, "logs", job]
    done = processes.run(line, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[:1]) == (0, "", [f"{UID} {UID}"])


@pytest.mark.parametrize("known", ["no passwd entry", "/nonexistent", "not to be written to", "a home"])
@pytest.mark.parametrize("told", [None, "", "/nonexistent", "relative", "a home"])
def test_home_is_the_first_that_can_be_written_to(
    known: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.delenv("HOME", raising=False) if told is None else monkeypatch.setenv(
        "HOME", homes["of environment"] if told == "a home" else told
    )
    found = user_variables(str(tmp_path / "attempt"))
    expected = homes["of environment"] if told == "a home" else str(tmp_path / "attempt" / "home")
    assert found["HOME"] == (homes["of passwd"] if known == "a home" else expected)
    assert Path(found["HOME"]).is_dir()
    assert {found["USER"], found["LOGNAME"]} == {str(os.getuid()) if known == "no passwd entry" else "ada"}
