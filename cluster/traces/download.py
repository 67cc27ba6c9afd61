"""Downloads public traces: listed with what pins each file, checked to the last bit, and put in place whole."""

import errno
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Annotated, BinaryIO

from pydantic import BaseModel, Field

from ..files.certificates import OF_SYSTEM, certificate_problem, client_tls_context
from ..files.errors import InputError
from ..files.input_problems import name_advice
from ..files.yaml_file import read_json_array

if TYPE_CHECKING:
    import httpx

OURS = Path(__file__).with_name("catalogue.json")
MAX_DOWNLOAD_BYTES = 100 * 2**20  # of a file whose size is not known: GitHub takes no larger one
FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"


class PublicTrace(BaseModel, frozen=True, extra="forbid"):
    """A file of a public repository, at one commit."""

    name: Annotated[str, Field(pattern=FILE_NAME)]
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=1)] | None = None
    licence: Annotated[str, Field(min_length=1)]
    good_for: str
    saved_as: Annotated[str, Field(pattern=FILE_NAME)]  # a folder, where the file is an archive
    members: str | None = None  # of an archive (tar.gz): the names of the files to take, such as *.csv

    @property
    def most_bytes(self) -> int:
        """Bytes that the file has, or may have if its size is not known."""
        return MAX_DOWNLOAD_BYTES if self.size_bytes is None else self.size_bytes

    def url(self, mirror: str) -> str:
        """Return where the file is: below a mirror, by repository and commit."""
        return f"{mirror.rstrip('/')}/{self.repository}/{self.commit}/{self.path}"


def read_catalogue(path: Path = OURS) -> dict[str, PublicTrace]:
    """Return the traces of a catalogue by name, in its order.

    Raises:
        InputError: If the file cannot be used, or has a name twice.
    """
    found: dict[str, PublicTrace] = {}
    for line, trace in read_json_array(path, PublicTrace):
        if trace.name in found:
            raise InputError(f"{trace.name!r} stands there twice", "rename one", path=path, line=line, field="name")
        found[trace.name] = trace
    return found


def trace_named(name: str, catalogue: dict[str, PublicTrace]) -> PublicTrace:
    """Return a trace of a catalogue.

    Raises:
        InputError: If it has none of that name.
    """
    if name not in catalogue:
        raise InputError(f"there is no public trace {name!r}", name_advice(name, catalogue), field="NAME")
    return catalogue[name]


ReportProgress = Callable[[int, int | None], None]  # bytes that are here, and of how many if that is known
MAX_FRUITLESS_TRIES = 3  # in a row that bring nothing new
RETRY_PAUSE_S = 0.5  # after the first of them; it doubles
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
NETWORK = "check the network and the proxy, or name a mirror with --mirror"
RESUME_ADVICE = "run the same command again: it goes on where this one stopped"
TOO_LONG = "it is not the requested file; check the mirror or the proxy"


def fetch_rest(
    url: str, into: BinaryIO, *, size: int | None, max_bytes: int, timeout_s: float, report: ReportProgress
) -> None:
    """Fetch what a file does not hold yet.

    A connection that breaks, or a server that has trouble, is tried again, up to three times in a row that bring
    nothing new.

    Args:
        url: Where it is.
        into: Holds the first bytes, if any are there from earlier; open for reading and writing.
        size: Bytes of the whole, if known.
        max_bytes: Bytes that it may have.
        timeout_s: Silence after which a connection counts as broken.
        report: Receives how many bytes are here, and of how many.

    Raises:
        InputError: If it cannot be had.
        OSError: If it cannot be written.
    """
    import httpx

    try:
        identity = {"Accept-Encoding": "identity"}
        client = httpx.Client(
            verify=client_tls_context(None, public=True), timeout=timeout_s, follow_redirects=True, headers=identity
        )
    except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:  # of proxies in the environment
        raise InputError(
            f"no connection can be set up: {_error_words(error)}", "check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        ) from error
    furthest, failed = _file_end(into), 0
    report(furthest, size)
    with client:
        while trouble := _fetch_once(client, url, into, size, max_bytes, report):
            failed = 0 if _file_end(into) > furthest else failed + 1
            furthest = max(furthest, _file_end(into))
            if failed == MAX_FRUITLESS_TRIES:
                raise InputError(f"{url}: {trouble}", RESUME_ADVICE)
            time.sleep(RETRY_PAUSE_S * 2 ** (failed - 1) if failed else 0.0)


def _fetch_once(
    client: "httpx.Client", url: str, into: BinaryIO, size: int | None, max_bytes: int, report: ReportProgress
) -> str:
    """Fetch the rest in one try, and return what broke it; empty if nothing did."""
    import httpx

    have = _file_end(into)
    try:
        with client.stream("GET", url, headers={"Range": f"bytes={have}-"} if have else {}) as answer:
            if have and answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return ""  # nothing is left; its hash shows whether it is the right file
            if answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                return f"the server answers {answer.status_code} {answer.reason_phrase}"
            _check_answer(url, answer)
            return _append_answer(answer, url, into, size, max_bytes, report)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        if (problem := certificate_problem(error, str(error.request.url), OF_SYSTEM)) is not None:
            raise InputError(f"{url}: {problem}") from error
        if have:  # the network was there, and may come back
            return f"the server cannot be reached any more: {_error_words(error)}"
        raise InputError(f"{url}: the server cannot be reached: {_error_words(error)}", NETWORK) from error
    except httpx.TimeoutException:
        return f"the server sent nothing for {client.timeout.read:g} s"
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        return f"the connection broke: {_error_words(error)}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"{url}: {_error_words(error)}", NETWORK) from error


def _check_answer(url: str, answer: "httpx.Response") -> None:
    if not answer.is_success:
        seen = f"{answer.status_code} {answer.reason_phrase}".strip()
        raise InputError(f"{url}: the server answers {seen}", "check the mirror; the file may have been taken away")
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        problem = f"{url}: the server packs the file ({answer.headers['Content-Encoding'][:40]}), unasked"
        raise InputError(problem, "name another mirror, or check the proxy")


def _append_answer(
    answer: "httpx.Response", url: str, into: BinaryIO, size: int | None, max_bytes: int, report: ReportProgress
) -> str:
    """Write an answer behind what is there, or in its place if the server begins anew; return what broke it."""
    have = _first_byte_of_answer(answer, _file_end(into))
    if have < 0:
        into.truncate(0)
        return "the server sent another part than the requested one"
    into.truncate(have)
    into.seek(have)
    length = answer.headers.get("Content-Length", "")
    total = have + int(length) if length.isdecimal() else None
    if total is not None and (total > max_bytes or size not in (None, total)):
        raise InputError(
            f"{url}: the server offers {total:,} bytes instead of {_expected_size_words(size, max_bytes)}", TOO_LONG
        )
    report(have, size or total)
    for chunk in answer.iter_raw():
        have += len(chunk)
        if have > max_bytes:
            raise InputError(f"{url}: the server sends more than {_expected_size_words(size, max_bytes)}", TOO_LONG)
        into.write(chunk)
        report(have, size or total)
    return "" if size in (None, have) else f"the connection ended after {have:,} of {size:,} bytes"


def _first_byte_of_answer(answer: "httpx.Response", have: int) -> int:
    """Return at which byte an answer begins; -1 for a part that does not follow on what is there."""
    if answer.status_code != 206:
        return 0
    found = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return have if found and int(found[1]) == have else -1


def _file_end(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def _expected_size_words(size: int | None, max_bytes: int) -> str:
    return f"the {max_bytes:,} that may come" if size is None else f"the {size:,} that the file has"


def _error_words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


MAX_UNPACKED_BYTES = 2**30  # unpacked, all files together
MAX_ARCHIVE_FILES = 10_000
COPY_CHUNK_BYTES = 2**20
NOT_TAKEN = "do not use this archive; report it to its authors"


def unpack(archive: Path, names: str, into: Path) -> None:
    """Write the files of a tar archive whose names fit a pattern straight into a folder.

    The archive decides on no path: of each name only the last part is used. An archive with a link, a device, an
    absolute name or one with `..` is refused, and so is one that unpacks to more than 1 GiB.

    Args:
        archive: The archive, compressed or not.
        names: Pattern of the file names, such as `*.csv`.
        into: An empty folder.

    Raises:
        InputError: If the archive is damaged, is not safe, or has no such file.
        OSError: If a file cannot be written.
    """
    left, taken = MAX_UNPACKED_BYTES, set[str]()
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in _safe_members(archive, tar):
                name = PurePosixPath(member.name).name
                if not member.isreg() or not fnmatch.fnmatchcase(name, names):
                    continue
                if name in taken:
                    raise InputError(f"it holds {name!r} twice", NOT_TAKEN, path=archive)
                taken.add(name)
                left -= member.size
                content = tar.extractfile(member)
                if left < 0 or content is None:
                    raise InputError(f"it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes", NOT_TAKEN, path=archive)
                _copy_content(content, into / name)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise InputError(f"is no archive that can be read: {error}", "fetch it again", path=archive) from error
    if not taken:
        raise InputError(f"it holds no file named {names}", "check the catalogue's members", path=archive)


def _safe_members(archive: Path, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(tar):
        path = PurePosixPath(member.name)
        if not (member.isreg() or member.isdir()):
            raise InputError(f"{member.name!r} in it is a link or a device", NOT_TAKEN, path=archive)
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{member.name!r} in it leads out of its folder", NOT_TAKEN, path=archive)
        if count >= MAX_ARCHIVE_FILES:
            raise InputError(f"it holds more than {MAX_ARCHIVE_FILES:,} files", NOT_TAKEN, path=archive)
        yield member


def _copy_content(content: IO[bytes], to: Path) -> None:
    with to.open("xb") as file:
        while chunk := content.read(COPY_CHUNK_BYTES):
            file.write(chunk)


MIRROR = "https://raw.githubusercontent.com"
SOURCE = "SOURCE.json"  # in a folder that was unpacked: where it is from, and the hash of each file
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def download(trace: PublicTrace, target: Path, *, mirror: str, timeout_s: float, report: ReportProgress) -> bool:
    """Download a trace, unless it is there.

    What has come so far stands beside the target and ends in `.part`. It stays when the download breaks off, and the
    next one goes on from there.

    Args:
        trace: Which.
        target: The file to write, or the folder where the trace is an archive.
        mirror: Base URL.
        timeout_s: Seconds of silence after which a connection counts as broken.
        report: Receives how many bytes are here, and of how many.

    Returns:
        Whether it was downloaded; False if it was there already.

    Raises:
        InputError: If it cannot be had or written, or something else stands there.
    """
    try:
        part = part_file_of(trace, target)
        if is_downloaded(trace, target):
            _remove_leftover(part)
            return False
        with _open_locked_part(part) as file:
            _fetch_missing(trace, part, file, mirror, timeout_s, report)
            file.flush()
            os.fsync(file.fileno())
            _put_in_place(trace, part, target)
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        if error.errno in NO_SPACE:
            fix = "free some space and run the same command again: it goes on where this one stopped"
            raise InputError(problem, fix, path=target) from error
        raise InputError(problem, "give another path with --output", path=target) from error
    return True


def target_of(trace: PublicTrace, output: Path | None) -> Path:
    """Return where a trace is put: a file in an existing folder, or the output itself."""
    if output is None:
        return Path(trace.saved_as)
    return output / trace.saved_as if trace.members is None and os.path.isdir(output) else output  # noqa: PTH112


def part_file_of(trace: PublicTrace, target: Path) -> Path:
    """Return the file that holds what has come so far."""
    suffix = ".part" if trace.members is None else ".tar.gz.part"
    return target.with_name(target.name + suffix)


def is_downloaded(trace: PublicTrace, target: Path) -> bool:
    """Return whether a trace stands at a path, whole.

    Raises:
        InputError: If something else does, or its folder is missing.
        OSError: If it cannot be read.
    """
    if not os.path.lexists(target):
        if not target.parent.is_dir():
            raise InputError(f"there is no folder {target.parent}", "make it, or give another path with --output")
        return False
    same = _folder_holds_trace(trace, target) if trace.members is not None else _has_hash(trace.sha256, target)
    if not same:
        problem = f"something else stands there: it is not {trace.name} as it was published"
        raise InputError(problem, "move it away, or give another path with --output", path=target)
    return True


def _has_hash(sha256: str, path: Path) -> bool:
    return path.is_file() and _sha256(path) == sha256


def _folder_holds_trace(trace: PublicTrace, folder: Path) -> bool:
    """Return whether a folder holds what was unpacked from a trace; other files beside it are no matter."""
    try:
        source = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        files = dict(source["files"])
        return source["sha256"] == trace.sha256 and all(
            Path(name).name == name and _has_hash(sha256, folder / name) for name, sha256 in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _open_locked_part(part: Path) -> Iterator[BinaryIO]:
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


def _remove_leftover(part: Path) -> None:
    """Remove what a download left that was killed just after its trace had been put in place."""
    if os.path.lexists(part):
        with suppress(OSError, InputError), _open_locked_part(part) as file:
            file.truncate(0)


def _fetch_missing(
    trace: PublicTrace, part: Path, file: BinaryIO, mirror: str, timeout_s: float, report: ReportProgress
) -> None:
    """Fetch what is missing of a file until it has its hash; one that broke off long ago may have to begin anew."""
    url = trace.url(mirror)
    begun = file.seek(0, os.SEEK_END)
    if begun and _sha256(part) == trace.sha256:
        return
    if begun >= trace.most_bytes:
        begun = file.truncate(0)
    for earlier in (True, False) if begun else (False,):
        fetch_rest(url, file, size=trace.size_bytes, max_bytes=trace.most_bytes, timeout_s=timeout_s, report=report)
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


def _put_in_place(trace: PublicTrace, part: Path, target: Path) -> None:
    """Put a checked file in place, or what is in it."""
    if trace.members is None:
        if not is_downloaded(trace, target):  # another process may have been faster
            part.replace(target)
        return
    folder = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(folder, ignore_errors=True)  # of a download that was killed: this one alone has the part
    folder.mkdir(mode=0o700)
    try:
        unpack(part, trace.members, folder)
        files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
        source = {
            **trace.model_dump(include={"name", "repository", "commit", "path", "sha256", "licence"}),
            "files": files,
        }
        (folder / SOURCE).write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
        folder.chmod(0o755)
        for path in (*folder.iterdir(), folder):  # the name must not outlive a loss of power without the content
            _sync(path)
        if not is_downloaded(trace, target):
            folder.rename(target)
            with suppress(OSError):
                _sync(target.parent)
        part.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(path: Path) -> None:
    """Write a file or a folder to its disk, where the file system can."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of folders, on some file systems
            raise
    finally:
        os.close(number)
