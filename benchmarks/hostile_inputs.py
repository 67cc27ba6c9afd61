"""Inputs that a clumsy or hostile user might send: valid ones with a few faults.

Every input is a function of a random generator, so that a seed brings it back.
"""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -0.0, 1, -1, 2, 0.5, 1e-9, 5e-324, 1e-308, 1e-3, 1e6, 1e15, 1e30, 1e300, 1.7976931348623157e308, float("inf"),
    float("-inf"), float("nan"), 2**31, 2**31 - 1, 2**63, 2**63 - 1, -(2**63), 2**64, 10**30, 10**400, True, False, "1",
    "1e999", "nan", "0x10", "1_000", "٣", " 2 ",
)  # fmt: skip
TEXTS = (
    "", " ", "\x00", "a\x00b", "\n", "a\nb", "-", "--help", "../..", "/", "/dev/zero", "~", "null", "true", "yes", "{}",
    "'", '"', "<b>", "%s", "{0}", "${HOME}", "[red]x[/red]",
    "\x1b[31m", "ünïcode", "\u202e", "😀", "a" * 300, "x" * 70000,
    "1:2:3", "2017-10-09 07:01:00", "None", "NaN", "&a", "*a", "!!python/object:os.system", "<<", "? x",
)  # fmt: skip
LONGEST = 4 << 20  # characters of a value
PIECES = (
    b"", b"\x00", b"\xff", b"\n", b"\r\n", b"\t", b":", b"- ", b"{", b"}", b"[", b"]", b",", b"'", b'"', b"#", b"&a ",
    b"*a", b"|", b">", b"%", b"!!", b"---\n", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"9" * 400, b"1e999",
    b"nan", b"-1", b"0",
    b"[" * 2000, b"{" * 2000, b"a: " * 500, b"0x" + b"f" * 5000, b"1" + b":59" * 5000,
)  # fmt: skip


def mutated_value(rng: Random, value: Any) -> Any:
    """Return a value of JSON with one to four things in it that are something else."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _changed(rng, value)
    return value


def _changed(rng: Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        return _changed_mapping(rng, value)
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        ways: Sequence[Callable[[], list[Any]]] = (
            lambda: [*value[:at], _changed(rng, value[at]), *value[at + 1 :]],
            lambda: [*value[:at], *value[at + 1 :]],
            lambda: [*value, value[at]],
            lambda: _repeated(value, rng.choice((0, 2, 50))),
        )
        return rng.choice(ways)()
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64 and rng.random() < 0.7):
        return rng.choice((*NUMBERS, value * 1e9, -value, value / 1e9, rng.random() * 10 ** rng.randint(-20, 20)))
    return strange(rng, 3)


def _repeated(value: list[Any], times: int) -> list[Any]:
    """Return a list that comes so often, unless that would be longer than anything that is read within seconds."""
    return value * times if times * len(str(value)) <= LONGEST else value


def _changed_mapping(rng: Random, value: dict[str, Any]) -> dict[str, Any]:
    name, way = rng.choice(list(value)), rng.random()
    if way < 0.6:
        return {**value, name: _changed(rng, value[name])}
    if way < 0.75:
        return {key: it for key, it in value.items() if key != name}
    if way < 0.9:
        return {**value, rng.choice((f"{name}s", name[:-1], name.upper(), str(rng.choice(TEXTS)))): value[name]}
    return {**value, name: strange(rng, 3)}


def strange(rng: Random, depth: int) -> Any:
    """Return anything that JSON can hold, not nested deeper than `depth`."""
    way = rng.random()
    if way < 0.35:
        return rng.choice(NUMBERS)
    if way < 0.75 or depth == 0:
        return rng.choice((*TEXTS, None))
    if way < 0.87:
        return [strange(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {str(rng.choice(TEXTS)): strange(rng, depth - 1) for _ in range(rng.randrange(4))}


def mutated_bytes(rng: Random, data: bytes) -> bytes:
    """Return bytes of which some are changed, gone, doubled, moved, or others."""
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        first = rng.randrange(len(data) + 1)
        last = min(len(data), first + rng.choice((0, 1, 1, 2, 8, 64, len(data))))
        way = rng.randrange(6)
        if way == 0:
            data = data[:first] + rng.choice(PIECES) + data[last:]
        elif way == 1:
            data = data[:first] + data[last:]
        elif way == 2:
            data = data[:last] + data[first:last] + data[last:]
        elif way == 3 and data:
            at = rng.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif way == 4:
            data = data[:first] + str(rng.choice(NUMBERS)).encode() + data[last:]
        else:
            data = data[:first]
    return data[: 1 << 20]


def mutated_rows(rng: Random, text: str) -> bytes:
    """Return a table in which cells are something else, and rows stand elsewhere, twice or nowhere."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not lines:
            break
        at, way = rng.randrange(len(lines)), rng.random()
        cells = lines[at].split(",")
        if way < 0.6:
            cells[rng.randrange(len(cells))] = str(rng.choice((*NUMBERS, *TEXTS)))
            lines[at] = ",".join(cells)
        elif way < 0.75:
            rng.shuffle(cells)
            lines[at] = ",".join(cells)
        elif way < 0.85:
            del lines[at]
        else:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
    data = "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n"
    return mutated_bytes(rng, data) if rng.random() < 0.2 else data


def as_json(value: Any) -> bytes:
    """Return a value as JSON; numbers that JSON does not know are written as Python and JavaScript write them."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
