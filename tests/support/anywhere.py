"""The ways in which people start the tests: `python -m tests.support.anywhere WAY,WAY,... COMMAND ...`, `--list`.

The command runs in the current folder, in all of the ways at once, and its exit status is returned. A user who is not
root needs a checkout that it may read and write: `copy` is a way for that.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# Of a script: where the path of Python has spaces, the first line may not name it.
HEAD = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
"""


class Start(NamedTuple):
    """How a command is started."""

    line: list[str]
    environment: dict[str, str]
    folder: Path


def before(*words: str) -> Callable[[Start], Start]:
    """Return a way that puts another command before the command."""
    return lambda it: it._replace(line=[*words, *it.line])


def without(*names: str) -> Callable[[Start], Start]:
    return lambda it: it._replace(environment={key: value for key, value in it.environment.items() if key not in names})


def having(**variables: str) -> Callable[[Start], Start]:
    return lambda it: it._replace(environment=it.environment | variables)


def user(number: int, home: str) -> Callable[[Start], Start]:
    """Return a way to be another user, who owns nothing; takes root."""
    drop = before("setpriv", "--reuid", str(number), "--regid", str(number), "--clear-groups", "--bounding-set=-all")
    return lambda it: having(HOME=home)(drop(it))


def copied(it: Start) -> Start:
    """Start it in a copy of the checkout that anybody may write, in a folder whose name has a space and an umlaut."""
    folder = Path(tempfile.mkdtemp(prefix="a copy of Longshöre ", dir="/var/tmp")) / "longshore"
    left_out = shutil.ignore_patterns(".venv", ".git", ".mypy_cache", ".ruff_cache", ".hypothesis", "__pycache__")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=left_out)
    if (ROOT.parent / "shared").exists():
        (folder.parent / "shared").symlink_to(ROOT.parent / "shared")
    copy_environment(folder / ".venv")
    for path in (folder.parent, *folder.parent.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))
    # What .venv has installed is the other checkout.
    return it._replace(folder=folder, environment=it.environment | {"PYTHONPATH": f"{folder / 'src'}:{folder}"})


def copy_environment(target: Path) -> None:
    """Make a virtual environment with the packages of this one, whose Python any user may run."""
    python, own = any_users_python(), Path(sys.prefix)
    (target / "bin").mkdir(parents=True)
    (target / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    packages = Path(sysconfig.get_path("purelib"))
    (target / packages.parent.relative_to(own)).mkdir(parents=True)
    (target / packages.relative_to(own)).symlink_to(packages)
    for name in ("python", "python3"):
        (target / "bin" / name).symlink_to(python)
    for script in (own / "bin").iterdir():
        text = script.read_bytes() if not script.is_symlink() else b"#!"
        if not text.startswith(b"#!"):
            (target / "bin" / script.name).symlink_to(script)  # a program
        elif b"python" in text.partition(b"\n")[0]:
            # A path in the first line may have no spaces.
            head = HEAD.format(python=target / "bin" / "python")
            (target / "bin" / script.name).write_bytes(head.encode() + text.partition(b"\n")[2])
            (target / "bin" / script.name).chmod(0o755)
    (target / ".stamp").touch()


def any_users_python() -> Path:
    """Return a Python of this version that other users may run, as those in root's home may not be run."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (Path(sys.base_prefix, "bin", version), Path("/usr/bin", version), Path("/usr/local/bin", version)):
        if found.exists() and all(it.stat().st_mode & 0o001 for it in (found.resolve(), *found.resolve().parents)):
            return found
    sys.exit(f"there is no {version} that another user may run")


WAYS: dict[str, Callable[[Start], Start]] = {
    "copy": copied,
    "background": before("sh", "-c", '"$@" & wait $!', "sh"),  # a shell without job control: SIGINT, SIGQUIT ignored
    "nohup": before("nohup"),
    "no-terminal": before("setsid", "--wait"),
    "no-home": without("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"),
    "no-language": having(LANG="C", LC_ALL="C"),
    "closed-umask": before("sh", "-c", 'umask 077; exec "$@"', "sh"),
    "nobody": user(65534, "/nonexistent"),
    "no-name": user(54321, "/"),  # no passwd entry, as in many containers
    "in-order": having(PYTEST_ADDOPTS="-p no:randomly"),
    "signals-blocked": before(  # shells need SIGCHLD
        sys.executable, "-c",
        "import os, signal, sys; signal.pthread_sigmask(0, (1, 2, 3, 10, 12, 13, 14, 15)); "
        "os.execvp(sys.argv[1], sys.argv[1:])",
    ),
    "busy": lambda it: it,  # beside four busy loops
}  # fmt: skip


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep cores busy at the usual priority."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(ways: Sequence[str], line: Sequence[str]) -> int:
    """Run a command in all of some ways, and return its exit status."""
    start = Start([*line], dict(os.environ), Path.cwd())
    for way in ways:
        start = WAYS[way](start)
    with ExitStack() as stack:
        if "busy" in ways:
            stack.enter_context(busy_loops(4))
        if "copy" in ways:
            stack.callback(shutil.rmtree, start.folder.parent, ignore_errors=True)
        # Ctrl-C goes to the command, too: it ends, and this with it.
        return subprocess.call(start.line, env=start.environment, cwd=start.folder, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the loops end with it
    if sys.argv[1:] == ["--list"]:
        sys.exit(print("\n".join(WAYS)))  # noqa: T201
    if len(sys.argv) < 3 or (unknown := [it for it in sys.argv[1].split(",") if it not in WAYS]):
        sys.exit(f"usage: python -m tests.support.anywhere WAY,... COMMAND ...; the ways are {', '.join(WAYS)}")
    sys.exit(run(sys.argv[1].split(","), sys.argv[2:]))
