"""Faults of GPUs in the log of the kernel."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

KMSG = Path("/dev/kmsg")
MOST_BYTES = 16 << 20  # of what is read; the kernel keeps much less
RECORD_BYTES = 8192
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{1,20})\): (\d{1,4})\b")


@dataclass(frozen=True, slots=True)
class XidLine:
    """A fault that the log tells of."""

    at_s: float  # since the boot
    pci: str  # as the driver writes it: 0000:0f:00
    number: int
    line: str


def read_log(path: Path) -> list[str] | None:
    """Return the lines of the kernel's log, None without the right to read it, or where there is none.

    Args:
        path: /dev/kmsg, or a file with lines as that has them.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return list(_lines(file))
    except PermissionError:
        return None
    finally:
        os.close(file)


def _lines(file: int) -> Iterator[str]:
    """Yield lines until there are no more; /dev/kmsg gives one record at each reading."""
    rest, taken = b"", 0
    while taken < MOST_BYTES:
        try:
            part = os.read(file, RECORD_BYTES)
        except BlockingIOError:
            break
        except BrokenPipeError:  # records were overwritten meanwhile; the next reading goes on behind them
            continue
        if not part:
            break
        taken += len(part)
        *whole, rest = (rest + part).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def xid_lines(lines: Iterable[str]) -> list[XidLine]:
    """Return the faults that lines of the log tell of.

    Args:
        lines: As /dev/kmsg has them: `6,1234,5678901,-;text`, the third number in microseconds since the boot.
    """
    found = []
    for line in lines:
        head, _, text = line.partition(";")
        match = _XID.search(text or head)
        if match is not None:
            found.append(XidLine(_at_s(head), match[1].lower(), int(match[2]), (text or head).strip()[:300]))
    return found


def _at_s(head: str) -> float:
    fields = head.split(",")
    return int(fields[2]) / 1e6 if len(fields) >= 3 and fields[2].isdecimal() and len(fields[2]) < 20 else 0.0


def same_gpu(pci: str, line: XidLine) -> bool:
    """Say whether a line is about the GPU at a PCI address; domains have four digits in the log, eight in NVML."""
    return _short(pci) == _short(line.pci)


def _short(pci: str) -> tuple[str, ...]:
    domain, _, rest = pci.lower().partition(":")
    return (domain.lstrip("0"), rest.partition(".")[0])
