"""A PostgreSQL server in a temporary folder, reached through a socket in it."""

import os
import pwd
import shutil
from pathlib import Path
from tempfile import mkdtemp

from tests.support import processes

BINARIES = (None, "/usr/local/bin", *(str(path) for path in Path("/usr/lib/postgresql").glob("*/bin")))


class NoServerError(Exception):
    """There is no PostgreSQL here that could be started."""


class Server:
    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="longshore-pg-", dir="/tmp"))  # sockets take short paths only
        self.schemas = 0
        self.user = other_user()
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self.run("initdb", "--username=longshore", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8")
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off"
        self.run("pg_ctl", "start", "--wait", "--silent", f"--log={self.folder / 'log'}", f"--options={options}")

    def stop(self, mode: str = "fast") -> None:
        self.run("pg_ctl", "stop", "--wait", "--silent", f"--mode={mode}")

    def remove(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder)

    def url(self, schema: str) -> str:
        return f"postgresql://longshore@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def run(self, name: str, *arguments: str) -> None:
        command = [binary(name), f"--pgdata={self.folder / 'data'}", *arguments]
        groups: list[str] | None = None if self.user is None else []
        done = processes.run(
            command,
            user=self.user,
            extra_groups=groups,
            cwd=self.folder,
            stdin=processes.DEVNULL,
            stdout=processes.DEVNULL,
            stderr=processes.DEVNULL,
            check=False,
        )
        if done.returncode != 0:
            raise NoServerError(f"{name} ended with {done.returncode}")


def binary(name: str) -> str:
    found = next((path for folder in BINARIES if (path := shutil.which(name, path=folder))), None)
    if found is None:
        raise NoServerError(f"there is no {name}")
    return found


def other_user() -> str | None:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    known = [name for name in ("postgres", "nobody") if name in names]
    if not known:
        raise NoServerError("it refuses to run as root, and there is no user postgres or nobody")
    return known[0]
