"""Reading zips of arrays that may be hostile: nothing is unpacked before it is known how large it is.

A few bytes of an archive or a header can ask for terabytes, and Python's own readers believe them.
"""

import io
import math
import re
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from stat import S_ISREG

import numpy as np
from numpy.typing import NDArray

LARGEST_BYTES = 1 << 30  # more than any policy of ours needs
UNSUSPECTED_BYTES = 1 << 26  # so much may be packed as well as it can be
MOST_TIMES = 16  # beyond that, weights pack to nine tenths of their size, and a bomb to a thousandth
HEADER_BYTES = 1 << 12  # of an array; ours take 128
NAME_BYTES = 1 << 10  # of an entry in the list of an archive, with what stands beside it
HEADER = re.compile(
    rb"\{'descr': '([<>]f[248])', 'fortran_order': (True|False), 'shape': \(((?:\d{1,12}(?:, ?|(?=\))))*)\), \} *\n"
)
_END = struct.Struct("<4s4H2LH")  # of an archive: signature, numbers of disks and entries, size and place of the list
_WIDE = b"PK\x06\x07"  # begins the record that counts in 64 bits

Shapes = Mapping[str, tuple[int, ...]]


def read_file(path: Path) -> bytes:
    """Return the content of a plain file.

    Raises:
        ValueError: If it is no plain file, or too large.
        OSError: If it cannot be read.
    """
    status = path.stat()
    if not S_ISREG(status.st_mode):  # before it is opened: a pipe would wait for a writer
        raise ValueError("it is no plain file")
    if status.st_size > LARGEST_BYTES:
        raise ValueError(f"it has {status.st_size} bytes, expected at most {LARGEST_BYTES}")
    with path.open("rb") as file:
        return file.read(status.st_size)


def open_archive(content: bytes, names: Collection[str], *, packed: bool) -> zipfile.ZipFile:
    """Return an archive that has exactly these entries, packed or as they are.

    Raises:
        ValueError: If it has others, or is no plain archive.
        zipfile.BadZipFile: If it is damaged.
    """
    if len(content) < _END.size or content[-_END.size :][:4] != b"PK\x05\x06":
        raise ValueError("it does not end as a zip does")
    _, _, _, _, count, listed_bytes, _, comment = _END.unpack(content[-_END.size :])
    if comment or content[-_END.size - 20 :][:4] == _WIDE or listed_bytes > NAME_BYTES * (count or 1):
        raise ValueError("it is no zip as this version writes")
    if count > len(names):
        raise ValueError(f"it has {count} entries, expected {len(names)}")
    archive = zipfile.ZipFile(io.BytesIO(content))
    found = sorted(archive.namelist())
    if found != sorted(names):
        odd = sorted(set(found) ^ set(names)) or found
        raise ValueError(f"its entries are not those expected: {odd[0]:.100}")
    for entry in archive.infolist():
        known = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
        if entry.compress_type not in known or entry.flag_bits & 1:
            raise ValueError(f"entry {entry.filename} is packed in a way that this version does not write")
    return archive


def read_entry(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """Return what an entry unpacks to.

    Raises:
        ValueError: If that is more than it may be, or than its size on file makes likely.
        zipfile.BadZipFile: If it is damaged.
    """
    entry = archive.getinfo(name)
    if entry.file_size > most_bytes:
        raise ValueError(f"{name} unpacks to {entry.file_size} bytes, expected at most {most_bytes}")
    on_file, room = entry.compress_size, max(0, archive.start_dir - entry.header_offset)
    if on_file > room:
        raise ValueError(f"{name} says that it has {on_file} bytes, and the file has {room} for it")
    if entry.file_size > max(UNSUSPECTED_BYTES, MOST_TIMES * on_file):
        raise ValueError(f"{name} has {on_file} bytes and unpacks to {entry.file_size}; no weights do")
    with archive.open(entry) as file:
        # The size is what the archive claims: without a bound, all would be unpacked before that is looked at.
        return file.read(entry.file_size + 1)


def shape_in(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """Return the shape that the header of an array says, of which nothing more is read.

    Raises:
        ValueError: If it is no header.
        zipfile.BadZipFile: If the archive is damaged.
    """
    with archive.open(_entry(name)) as file:
        return _header(io.BytesIO(file.read(HEADER_BYTES)), name)[0]


def arrays_in(archive: zipfile.ZipFile, shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Return arrays of numbers by name, whose shapes must be those given.

    Raises:
        ValueError: Naming the first of another shape or type.
        zipfile.BadZipFile: If the archive is damaged.
    """
    return {name: _array(archive, name, shape) for name, shape in shapes.items()}


def packed_bytes(shapes: Shapes) -> int:
    """Return how many bytes arrays of floating numbers take at most as an archive that is not packed."""
    room = HEADER_BYTES + 2 * NAME_BYTES
    return sum(8 * math.prod(shape) + room for shape in shapes.values()) + _END.size


def _entry(name: str) -> str:
    return f"{name}.npy"


def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    file = io.BytesIO(read_entry(archive, _entry(name), 8 * math.prod(shape) + HEADER_BYTES))
    found, is_fortran, dtype = _header(file, name)
    if found != shape:
        raise ValueError(f"weight {name} has shape {found}, its schema needs {shape}; train it again")
    content = file.read()
    if len(content) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"weight {name} has {len(content)} bytes, expected {dtype.itemsize * math.prod(shape)}")
    array = np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")
    return np.array(array, dtype=np.float32, order="C")


def _header(file: io.BytesIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Return shape, order and type; only what NumPy writes of floating numbers is understood, and nothing evaluated."""
    magic, length = file.read(8), file.read(2)
    text = file.read(min(int.from_bytes(length, "little"), HEADER_BYTES))
    found = HEADER.fullmatch(text) if magic == b"\x93NUMPY\x01\x00" else None
    if found is None:
        raise ValueError(f"weight {name} is no array of floating numbers")
    dtype, is_fortran, extents = (part.decode() for part in found.groups())
    shape = tuple(int(extent) for extent in extents.replace(",", " ").split())
    return shape, is_fortran == "True", np.dtype(dtype)
