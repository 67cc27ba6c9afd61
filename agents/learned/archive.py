"""Reads zips of arrays that may be hostile: sizes are checked before anything is unpacked.

A few bytes of an archive or a header can claim terabytes, and Python's own readers allocate them.
"""

import io
import math
import re
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_FILE_BYTES = 1 << 30  # of a checkpoint; our policies need less
UNCHECKED_RATIO_BYTES = 1 << 26  # up to this size any ratio of packing is allowed
MAX_STORED_BYTES = 1 << 34  # twice the largest replay buffer of a run
MAX_ZIP_ENTRIES = 10_000  # arrays of a run
MAX_PACKING_RATIO = 16  # weights pack to nine tenths of their size, a zip bomb to a thousandth
HEADER_BYTES = 1 << 12  # of an array; ours take 128
NAME_BYTES = 1 << 10  # of an entry in the list of an archive, its attributes included
HEADER = re.compile(
    rb"\{'descr': '([<>][fiu][248]|\|[biu]1)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,12}(?:, ?|(?=\))))*)\), \} *\n"
)
_ZIP_END = struct.Struct(
    "<4s4H2LH"
)  # of an archive: signature, numbers of disks and entries, size and place of the list
_ZIP64_END = b"PK\x06\x07"  # signature of the record with 64-bit counts
_ENDS_BYTES = 98  # of the records that an archive ends with

Shapes = Mapping[str, tuple[int, ...]]


def read_file(path: Path) -> bytes:
    """Return the content of a plain file.

    Raises:
        ValueError: If it is no plain file, or too large.
        OSError: If it cannot be read.
    """
    size = _plain_file_size(path)
    if size > MAX_FILE_BYTES:
        raise ValueError(f"it has {size} bytes, expected at most {MAX_FILE_BYTES}")
    with path.open("rb") as file:
        return file.read(size)


def _plain_file_size(path: Path) -> int:
    status = path.stat()
    if not S_ISREG(status.st_mode):  # before it is opened: a pipe would wait for a writer
        raise ValueError("it is no plain file")
    return status.st_size


def open_archive(content: bytes, names: Collection[str], *, packed: bool) -> zipfile.ZipFile:
    """Return an archive that has exactly these entries, packed or as they are.

    Raises:
        ValueError: If it has others, or is no plain archive.
        zipfile.BadZipFile: If it is damaged.
    """
    if len(content) < _ZIP_END.size or content[-_ZIP_END.size :][:4] != b"PK\x05\x06":
        raise ValueError("it does not end as a zip does")
    _, _, _, _, count, listed_bytes, _, comment = _ZIP_END.unpack(content[-_ZIP_END.size :])
    if comment or content[-_ZIP_END.size - 20 :][:4] == _ZIP64_END or listed_bytes > NAME_BYTES * (count or 1):
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


def read_entry(archive: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    """Return the unpacked bytes of an entry.

    Raises:
        ValueError: If that is more than it may be, or than its size on file makes likely.
        zipfile.BadZipFile: If it is damaged.
    """
    entry = archive.getinfo(name)
    if entry.file_size > max_bytes:
        raise ValueError(f"{name} unpacks to {entry.file_size} bytes, expected at most {max_bytes}")
    on_file, room = entry.compress_size, max(0, archive.start_dir - entry.header_offset)
    if on_file > room:
        raise ValueError(f"{name} claims {on_file} bytes, and the file has {room} for it")
    if entry.file_size > max(UNCHECKED_RATIO_BYTES, MAX_PACKING_RATIO * on_file):
        raise ValueError(f"{name} has {on_file} bytes and unpacks to {entry.file_size}; no weights do")
    with archive.open(entry) as file:
        # The size is only claimed: without a bound, all of the entry would be unpacked.
        return file.read(entry.file_size + 1)


def array_shape_in(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """Return the shape in the header of an array, without reading the array.

    Raises:
        ValueError: If it is no header.
        zipfile.BadZipFile: If the archive is damaged.
    """
    with archive.open(_entry_name(name)) as file:
        return _parse_header(io.BytesIO(file.read(HEADER_BYTES)), name)[0]


def arrays_in(archive: zipfile.ZipFile, shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Return arrays of numbers by name, whose shapes must be those given.

    Raises:
        ValueError: Naming the first of another shape or type.
        zipfile.BadZipFile: If the archive is damaged.
    """
    return {name: _read_weight(archive, name, shape) for name, shape in shapes.items()}


def max_unpacked_bytes(shapes: Shapes) -> int:
    """Return the most bytes that arrays of floating numbers take in an archive that is not packed."""
    room = HEADER_BYTES + 2 * NAME_BYTES
    return sum(8 * math.prod(shape) + room for shape in shapes.values()) + _ZIP_END.size


def _entry_name(name: str) -> str:
    return f"{name}.npy"


def stored_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file that `numpy.savez` wrote, by name, which take no more memory than the file has bytes.

    Raises:
        ValueError: If an entry is packed, is no array of numbers, or the file is shorter than it claims.
        OSError: If it cannot be read.
        zipfile.BadZipFile: If it is damaged.
    """
    size = _plain_file_size(path)
    with path.open("rb") as file:
        file.seek(max(0, size - _ENDS_BYTES))
        _check_entry_list(file.read(_ENDS_BYTES))
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > min(size, MAX_STORED_BYTES):
                raise ValueError(f"its entries have more bytes than the {size} of the file, or than {MAX_STORED_BYTES}")
            for entry in entries:
                _check_array_entry(entry)
            return {_array_name(entry): _parse_array(archive.read(entry), _array_name(entry)) for entry in entries}


def stored_entries(content: bytes, max_entries: int) -> dict[str, bytes]:
    """Return the entries of an archive that are not packed, by name; they take no more memory than the archive.

    Args:
        content: The archive.
        max_entries: That it may have.

    Raises:
        ValueError: If an entry is packed, or two have one name, or it has more entries.
        zipfile.BadZipFile: If it is damaged.
    """
    _check_entry_list(content[-_ENDS_BYTES:])
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if len(entries) > max_entries or len({entry.filename for entry in entries}) < len(entries):
            raise ValueError(f"it has {len(entries)} entries, expected at most {max_entries} of different names")
        if sum(entry.file_size for entry in entries) > len(content):
            raise ValueError(f"its entries have more bytes than the {len(content)} of the file")
        for entry in entries:
            if not _is_stored(entry):
                raise ValueError(f"entry {entry.filename!r:.100} is packed")
        return {entry.filename: archive.read(entry) for entry in entries}


def _check_entry_list(end: bytes) -> None:
    """Refuse an archive whose list of entries is longer than ours: Python reads all of it."""
    if len(end) < _ZIP_END.size or end[-_ZIP_END.size :][:4] != b"PK\x05\x06":
        raise ValueError("it does not end as a zip does")
    *_, count, listed_bytes, _, comment = _ZIP_END.unpack(end[-_ZIP_END.size :])
    is_wide = end[-_ZIP_END.size - 20 :][:4] == _ZIP64_END
    other_bytes = int.from_bytes(end[-58:-50], "little") if is_wide else listed_bytes  # a second record repeats it
    if comment or count > MAX_ZIP_ENTRIES or listed_bytes > NAME_BYTES * count or other_bytes != listed_bytes:
        raise ValueError("it is no zip as this version writes")


def _check_array_entry(entry: zipfile.ZipInfo) -> None:
    if not _is_stored(entry) or not entry.filename.endswith(".npy") or not entry.filename.isprintable():
        raise ValueError(f"entry {entry.filename!r:.100} is not as this version writes arrays")


def _is_stored(entry: zipfile.ZipInfo) -> bool:
    is_plain = (entry.compress_type, entry.compress_size) == (zipfile.ZIP_STORED, entry.file_size)
    return is_plain and not entry.flag_bits & 1


def _array_name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(".npy")


def _read_weight(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    content = read_entry(archive, _entry_name(name), 8 * math.prod(shape) + HEADER_BYTES)
    found = _parse_header(io.BytesIO(content), name)[0]
    if found != shape:
        raise ValueError(f"weight {name} has shape {found}, its schema needs {shape}; train it again")
    array = _parse_array(content, name)
    if array.dtype.kind != "f":
        raise ValueError(f"weight {name} is of {array.dtype}, expected floating numbers")
    return np.array(array, dtype=np.float32, order="C")


def _parse_array(content: bytes, name: str) -> NDArray[Any]:
    file = io.BytesIO(content)
    shape, is_fortran, dtype = _parse_header(file, name)
    numbers = file.read()
    if len(numbers) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{name} has {len(numbers)} bytes, expected {dtype.itemsize * math.prod(shape)}")
    if dtype.kind == "b" and numbers.strip(b"\0\1"):  # NumPy counts them wrongly
        raise ValueError(f"{name} has booleans other than 0 and 1")
    return np.frombuffer(numbers, dtype).reshape(shape, order="F" if is_fortran else "C").copy(order="K")


def _parse_header(file: io.BytesIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Return shape, order and type; only headers that NumPy writes for numbers are read, and nothing is evaluated."""
    magic, length = file.read(8), file.read(2)
    text = file.read(min(int.from_bytes(length, "little"), HEADER_BYTES))
    found = HEADER.fullmatch(text) if magic == b"\x93NUMPY\x01\x00" else None
    if found is None:
        raise ValueError(f"{name} is no array of numbers")
    dtype, is_fortran, extents = (part.decode() for part in found.groups())
    shape = tuple(int(extent) for extent in extents.replace(",", " ").split())
    return shape, is_fortran == "True", np.dtype(dtype)
