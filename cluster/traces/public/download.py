"""Downloading a public trace: checked to the last bit, and put in place at once or not at all."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ...files.errors import InputError
from .catalogue import PublicTrace
from .transfer import Tell, fetch
from .unpack import unpack

MIRROR = "https://raw.githubusercontent.com"
SOURCE = "SOURCE.json"  # in a folder that was unpacked: where it is from, and the hash of each file
TOLD = ("name", "repository", "commit", "path", "sha256", "licence")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def download(trace: PublicTrace, target: Path, *, mirror: str, timeout_s: float, tell: Tell) -> bool:
    """Download a trace, unless it is there.

    What has come so far stands beside the target and ends in `.part`. It stays when the download breaks off, and the
    next one goes on from there.

    Args:
        trace: Which.
        target: The file to write, or the folder where the trace is an archive.
        mirror: Base URL.
        timeout_s: Seconds of silence after which a connection counts as broken.
        tell: Is told how far it is.

    Returns:
        Whether it was downloaded; False if it was there already.

    Raises:
        InputError: If it cannot be had or written, or something else stands there.
    """
    try:
        if stands(trace, target):
            return False
        part = part_of(trace, target)
        with _locked(part) as file:
            _fill(trace, part, file, mirror, timeout_s, tell)
            file.flush()
            os.fsync(file.fileno())
            _put(trace, part, target)
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        if error.errno in NO_SPACE:
            fix = "free some space and run the same command again: it goes on where this one stopped"
            raise InputError(problem, fix, path=target) from error
        raise InputError(problem, "give another path with --output", path=target) from error
    return True


def target_of(trace: PublicTrace, output: Path | None) -> Path:
    """Return where a trace is put: a file in a folder that is there, or what was asked for."""
    if output is None:
        return Path(trace.saved_as)
    return output / trace.saved_as if trace.members is None and os.path.isdir(output) else output  # noqa: PTH112


def part_of(trace: PublicTrace, target: Path) -> Path:
    """Return the file that holds what has come so far."""
    suffix = ".part" if trace.members is None else ".tar.gz.part"
    return target.with_name(target.name + suffix)


def stands(trace: PublicTrace, target: Path) -> bool:
    """Return whether a trace stands at a path, whole.

    Raises:
        InputError: If something else does, or its folder is missing.
        OSError: If it cannot be read.
    """
    if not os.path.lexists(target):
        if not target.parent.is_dir():
            raise InputError(f"there is no folder {target.parent}", "make it, or give another path with --output")
        return False
    same = _same_folder(trace, target) if trace.members is not None else _same_file(trace.sha256, target)
    if not same:
        problem = f"something else stands there: it is not {trace.name} as it was published"
        raise InputError(problem, "move it away, or give another path with --output", path=target)
    return True


def _same_file(sha256: str, path: Path) -> bool:
    return path.is_file() and _sha256(path) == sha256


def _same_folder(trace: PublicTrace, folder: Path) -> bool:
    """Return whether a folder holds what was unpacked from a trace; other files beside it are no matter."""
    try:
        source = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        files = dict(source["files"])
        return source["sha256"] == trace.sha256 and all(
            Path(name).name == name and _same_file(sha256, folder / name) for name, sha256 in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """Open a file that only this process writes; it is no link, so that nothing else is written through it."""
    if os.path.lexists(part) and not stat.S_ISREG(part.lstat().st_mode):
        raise InputError("is no plain file", "move it away", path=part)
    number = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(number, "r+b") as file:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(os.fstat(number), part.stat())
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:  # or it was put in place between opening and locking
            raise InputError("another download writes it", "wait for that one", path=part)
        try:
            yield file
        finally:
            if not file.seek(0, os.SEEK_END):
                part.unlink()


def _fill(trace: PublicTrace, part: Path, file: BinaryIO, mirror: str, timeout_s: float, tell: Tell) -> None:
    """Fetch what is missing of a file until it has its hash; one that broke off long ago may have to begin anew."""
    url = trace.url(mirror)
    begun = file.seek(0, os.SEEK_END)
    if begun and _sha256(part) == trace.sha256:
        return
    if begun >= trace.most_bytes:
        begun = file.truncate(0)
    for earlier in (True, False) if begun else (False,):
        fetch(url, file, size=trace.size_bytes, most=trace.most_bytes, timeout_s=timeout_s, tell=tell)
        file.flush()
        found = _sha256(part)
        if found == trace.sha256:
            return
        file.truncate(0)
        if not earlier:
            problem = f"{url}: what came is not {trace.name}: its SHA-256 is {found}, not {trace.sha256}"
            raise InputError(problem, "check the mirror or the proxy, and try again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put(trace: PublicTrace, part: Path, target: Path) -> None:
    """Put a checked file in place, or what is in it."""
    if trace.members is None:
        if not stands(trace, target):  # somebody may have been faster
            part.replace(target)
        return
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        unpack(part, trace.members, folder)
        files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
        source = {
            **trace.model_dump(include={"name", "repository", "commit", "path", "sha256", "licence"}),
            "files": files,
        }
        (folder / SOURCE).write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
        folder.chmod(0o755)
        if not stands(trace, target):
            folder.rename(target)
        part.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
