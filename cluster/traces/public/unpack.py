"""Taking files out of an archive that somebody else made."""

import fnmatch
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from ...files.errors import InputError

MOST_BYTES = 2**30  # unpacked, all files together
MOST_MEMBERS = 10_000
CHUNK_BYTES = 2**20
NOT_TAKEN = "do not use this archive; tell whoever made it"


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
    left, taken = MOST_BYTES, set[str]()
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in _safe(archive, tar):
                name = PurePosixPath(member.name).name
                if not member.isreg() or not fnmatch.fnmatchcase(name, names):
                    continue
                if name in taken:
                    raise InputError(f"it holds {name!r} twice", NOT_TAKEN, path=archive)
                taken.add(name)
                left -= member.size
                content = tar.extractfile(member)
                if left < 0 or content is None:
                    raise InputError(f"it unpacks to more than {MOST_BYTES:,} bytes", NOT_TAKEN, path=archive)
                _copy(content, into / name)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise InputError(f"is no archive that can be read: {error}", "fetch it again", path=archive) from error
    if not taken:
        raise InputError(f"it holds no file named {names}", "check the catalogue's members", path=archive)


def _safe(archive: Path, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(tar):
        path = PurePosixPath(member.name)
        if not (member.isreg() or member.isdir()):
            raise InputError(f"{member.name!r} in it is a link or a device", NOT_TAKEN, path=archive)
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{member.name!r} in it leads out of its folder", NOT_TAKEN, path=archive)
        if count >= MOST_MEMBERS:
            raise InputError(f"it holds more than {MOST_MEMBERS:,} files", NOT_TAKEN, path=archive)
        yield member


def _copy(content: IO[bytes], to: Path) -> None:
    with to.open("xb") as file:
        while chunk := content.read(CHUNK_BYTES):
            file.write(chunk)
