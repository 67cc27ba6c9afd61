"""Hostile checkpoints are refused in one line, at once and in little memory, whatever sizes they claim."""

import io
import json
import os
import struct
import sys
import zipfile
import zlib
from ast import literal_eval
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.agents.learned.checkpoint import save_policy, schema_of, untrained_network
from longshore.cluster.files.plugins import registered
from tests.support import processes
from tests.support.budgets import examples

ROOT = Path(__file__).parents[2]
ROOM_BYTES = 600 << 20  # beside what the loader itself takes
CPU_S = 2  # of a load; one second on an idle machine
LOADER = f"""
import resource, sys
from pathlib import Path
from longshore.agents.learned.checkpoint import load_policy
from longshore.cluster.files.errors import CheckpointError
sys.stdout.write("ready\\n"); sys.stdout.flush()
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + {ROOM_BYTES},) * 2)
for line in sys.stdin:
    before = resource.getrusage(resource.RUSAGE_SELF)
    try:
        load_policy(Path(line.rstrip("\\n")))
        outcome = "loaded"
    except CheckpointError as error:
        outcome = "refused: " + str(error)
    except BaseException as error:
        outcome = "crashed: " + repr(error)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    sys.stdout.write(repr((spent_s, outcome)) + "\\n"); sys.stdout.flush()
"""

Load = Callable[[Path], str]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    """Load files in a process of little memory; return its answer."""
    command = [sys.executable, "-W", "error", "-c", LOADER]
    with processes.start(command, cwd=ROOT, stdin=processes.PIPE, stdout=processes.PIPE, text=True) as process:
        sends, answers = process.stdin, process.stdout
        assert sends is not None
        assert answers is not None
        assert answers.readline() == "ready\n"

        def one(path: Path) -> str:
            sends.write(f"{path}\n")
            sends.flush()
            answer = answers.readline()
            assert answer, f"the process died of {path.read_bytes()[:200]!r}"
            spent_s, outcome = literal_eval(answer)
            assert spent_s < CPU_S
            return str(outcome)

        yield one
        sends.close()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def headed(header: str) -> bytes:
    """Return an array with any header."""
    text = (header + "\n").encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def shaped(shape: str, descr: str = "'<f4'") -> bytes:
    return headed(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


def zipped(entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


class Parts:
    """A sound checkpoint in its parts, to be spoiled."""

    def __init__(self, network: str = "mlp", **schema: Any) -> None:
        torch.manual_seed(0)
        action = "candidate" if network == "candidates" else "node"
        made = schema_of(
            algorithm="ppo", network=network, action=action, observation="full", waiting=network == "candidates",
            node_gpus=(8,) * 8,
        )  # fmt: skip
        self.schema: Any = json.loads(made.model_dump_json()) | schema
        self.arrays = {name: npy(tensor.numpy()) for name, tensor in untrained_network(made).state_dict().items()}

    def weights(self) -> bytes:
        return zipped([(f"{name}.npy", content) for name, content in self.arrays.items()])

    def archive(self, weights: bytes | None = None, schema: bytes | None = None) -> bytes:
        text = json.dumps(self.schema).encode() if schema is None else schema
        content = self.weights() if weights is None else weights
        return zipped([("schema.json", text), ("weights.npz", content)], zipfile.ZIP_DEFLATED)

    def with_array(self, name: str, content: bytes) -> bytes:
        self.arrays[name] = content
        return self.archive()


def with_keys(keys: dict[str, Any]) -> Parts:
    parts = Parts()
    parts.schema |= keys
    return parts


FIRST = "policy.0.0.weight"


def claimed(content: bytes, size: int) -> bytes:
    """Return an archive of two entries whose last claims another size than it unpacks to."""
    spoiled = bytearray(content)
    at = spoiled.rindex(b"PK\x01\x02")
    spoiled[at + 24 : at + 28] = struct.pack("<I", size)
    return bytes(spoiled)


def lied(content: bytes, on_file: int) -> bytes:
    """Return an archive whose last entry claims another size on file than it has."""
    spoiled = bytearray(content)
    at = spoiled.rindex(b"PK\x01\x02")
    spoiled[at + 20 : at + 24] = struct.pack("<I", on_file)
    return bytes(spoiled)


def far(content: bytes, offset: int) -> bytes:
    """Return an archive whose last entry begins at a 64-bit offset."""
    spoiled = bytearray(content)
    at, extra = spoiled.rindex(b"PK\x01\x02"), struct.pack("<2HQ", 1, 8, offset)
    name_bytes = struct.unpack_from("<H", spoiled, at + 28)[0]
    spoiled[at + 30 : at + 32] = struct.pack("<H", len(extra))
    spoiled[at + 42 : at + 46] = b"\xff" * 4
    spoiled[at + 46 + name_bytes : at + 46 + name_bytes] = extra
    listed = len(spoiled) - 10
    spoiled[listed : listed + 4] = struct.pack("<I", struct.unpack_from("<I", spoiled, listed)[0] + len(extra))
    return bytes(spoiled)


def many(parts: Parts) -> bytes:
    return zipped([(str(i), b"") for i in range(65_000)])


def wide(parts: Parts) -> bytes:
    """Return an archive with 64-bit counts that claims a list of an exabyte."""
    content = parts.archive()
    end = content[-22:]
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, 1 << 60, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(content) - 22, 1)
    return content[:-22] + record + locator + end[:8] + b"\xff" * 12 + b"\0\0"


@cache
def bomb(size: int) -> bytes:
    """Return zeros that are packed as well as can be, packed once more."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    part = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)  # after which it can be repeated
    return part * (size >> 20) + packer.flush()


def bombed(entries: list[tuple[str, bytes]], claim: int) -> bytes:
    """Return an archive whose first entry unpacks to 1 GiB and claims to be smaller."""
    (name, _), *others = entries
    spoiled = bytearray(zipped([(name, bomb(1 << 30)), *others]))
    at = spoiled.index(b"PK\x01\x02")
    spoiled[at + 10 : at + 12] = spoiled[8:10] = struct.pack("<H", zipfile.ZIP_DEFLATED)
    spoiled[at + 24 : at + 28] = struct.pack("<I", claim)
    return bytes(spoiled)


def inner_bomb(parts: Parts) -> bytes:
    return parts.archive(bombed([(f"{name}.npy", content) for name, content in parts.arrays.items()], 200_000))


def outer_bomb(parts: Parts) -> bytes:
    return bombed([("schema.json", b""), ("weights.npz", parts.weights())], 1000)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "an array that asks 4 TB": lambda: Parts().with_array(FIRST, shaped("(1000000, 1000000)")),
    "an array that asks 4 TB of zeros": lambda: Parts().with_array(FIRST, shaped("(1000000, 1000000)") + bytes(1000)),
    "an array of objects": lambda: Parts().with_array(FIRST, shaped("(1,)", "'|O'")),
    "an array of long texts": lambda: Parts().with_array(FIRST, shaped("(256, 195)", "'<U999999999'")),
    "an array of many fields": lambda: Parts().with_array(FIRST, shaped("(9,)", "[('a', '<f4', (99999, 99999))]")),
    "an array of negative size": lambda: Parts().with_array(FIRST, shaped("(-1, 5)")),
    "a header that is nested deeply": lambda: Parts().with_array(FIRST, headed("(" * 3000)),
    "a header of digits": lambda: Parts().with_array(FIRST, shaped("(" + "1" * 3900)),
    "a header of minus signs": lambda: Parts().with_array(FIRST, headed("-" * 3900 + "1")),
    "a header that is no dictionary": lambda: Parts().with_array(FIRST, headed("[1, 2]")),
    "a header of another format": lambda: Parts().with_array(FIRST, b"\x93NUMPY\x02\x00\xff\xff\xff\xff"),
    "an array without a header": lambda: Parts().with_array(FIRST, b""),
    "an array that ends early": lambda: Parts().with_array(FIRST, Parts().arrays[FIRST][:-4]),
    "an array that is too long": lambda: Parts().with_array(FIRST, Parts().arrays[FIRST] + b"more"),
    "complex numbers": lambda: Parts().with_array(FIRST, npy(np.zeros((256, 195), complex))),
    "no numbers": lambda: Parts().with_array("value.1.bias", npy(np.array([np.nan], np.float32))),
    "a network over candidates of a huge width": lambda: Parts("candidates").with_array(
        "score.weight", shaped("(1, 99999999999)")
    ),
    "a network over candidates of width 0": lambda: Parts("candidates").with_array("score.weight", shaped("(1, 0)")),
    "a network that is not installed": lambda: with_keys({"network": "transformer\n"}).archive(),
    "a network that is a path": lambda: with_keys({"network": "../../set"}).archive(),
    "a network for other actions": lambda: with_keys({"network": "candidates"}).archive(),
    "a schema that asks 24 GB": lambda: Parts(node_gpus=[8] * 125_000, gpus=1_000_000, items=125_000).archive(),
    "a schema of a million nodes": lambda: Parts(node_gpus=[1] * 1_000_000, gpus=1_000_000, items=1_000_000).archive(),
    "a schema of more": lambda: Parts(node_gpus=[1] * 1_000_001).archive(),
    "a schema of a million wrong nodes": lambda: Parts(node_gpus=["x"] * 1_000_000).archive(),
    "a schema of negative nodes": lambda: Parts(node_gpus=[72, -8]).archive(),
    "a schema of huge numbers": lambda: Parts(gpus=10**4000).archive(),
    "a schema of a million names": lambda: Parts(features=["x"] * 1_000_000).archive(),
    "a schema of a long name": lambda: Parts(algorithm="x\n" * 1_000_000).archive(),
    "a schema of long names": lambda: Parts(features=["x\n" * 1_000_000]).archive(),
    "a schema of a million keys": lambda: with_keys({str(i): i for i in range(200_000)}).archive(),
    "a schema of a long key": lambda: with_keys({"x" * 1_000_000: 1}).archive(),
    "a schema of an odd key": lambda: with_keys({"new\nline": 1}).archive(),
    "a schema that is nested deeply": lambda: Parts().archive(schema=b"[" * 4_000_000),
    "a schema that is a list": lambda: Parts().archive(schema=b"[]"),
    "a schema that is no text": lambda: Parts().archive(schema=b"\xff\xfe\x00"),
    "a schema of lists": lambda: Parts().archive(schema=b"[" + b"[]," * 1_000_000 + b"[]]"),
    "a schema that is too long": lambda: Parts().archive(schema=b" " * (1 << 24)),
    "weights that unpack to 4 GB": lambda: claimed(Parts().archive(bytes(100 << 20)), 0xFFFFFFFE),
    "a schema that unpacks to more than it claims": lambda: outer_bomb(Parts()),
    "weights that are all zeros": lambda: Parts("candidates").archive(bytes(120 << 20)),
    "weights with an inner bomb": lambda: inner_bomb(Parts()),
    "weights of 65,000 entries": lambda: Parts().archive(many(Parts())),
    "65,000 entries": lambda: many(Parts()),
    "an archive that counts in 64 bits": lambda: wide(Parts()),
    "weights that count in 64 bits": lambda: Parts().archive(wide(Parts())),
    "a size on file of 4 GB": lambda: lied(Parts().archive(), 0xFFFFFFFE),
    "weights with a size on file of 4 GB": lambda: Parts().archive(lied(Parts().weights(), 0xFFFFFFFE)),
    "a size on file of 0": lambda: lied(Parts().archive(), 0),
    "an entry that begins in 8 exabytes": lambda: far(Parts().archive(), 1 << 63),
    "an entry that begins before that": lambda: far(Parts().archive(), (1 << 63) - 1),
    "an entry that begins behind all": lambda: far(Parts().archive(), (1 << 64) - 1),
    "an entry that begins behind the file": lambda: far(Parts().archive(), 1 << 40),
    "an entry that begins in the list": lambda: far(Parts().archive(), len(Parts().archive()) - 60),
    "weights that begin in 8 exabytes": lambda: Parts().archive(far(Parts().weights(), 1 << 63)),
    "weights that begin behind the file": lambda: Parts().archive(far(Parts().weights(), 1 << 40)),
    "twice the same entry": lambda: zipped([("schema.json", b"{}"), ("schema.jsox", b"{}")]).replace(b"jsox", b"json"),
    "a name that leads elsewhere": lambda: zipped([("../schema.json", b"{}"), ("weights.npz", b"")]),
    "a comment": lambda: Parts().archive()[:-2] + b"\x05\x00hello",
    "nothing": lambda: b"",
    "the end of an archive alone": lambda: b"PK\x05\x06" + bytes(18),
    "another packing": lambda: zipped([("schema.json", b"{}"), ("weights.npz", bytes(9))], zipfile.ZIP_LZMA),
}  # fmt: skip


@pytest.mark.few(30)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_checkpoint_is_refused_in_one_line(name: str, load: Load, tmp_path: Path) -> None:
    path = tmp_path / "p.zip"
    path.write_bytes(HOSTILE[name]())
    outcome = load(path)
    assert outcome.startswith(f"refused: {path}")
    assert "\n" not in outcome
    assert len(outcome) < 1100


def test_a_bomb_is_refused_before_it_is_unpacked_whatever_it_says_of_its_size(load: Load, tmp_path: Path) -> None:
    path, bomb_of_zeros = tmp_path / "p.zip", Parts("candidates").archive(bytes(120 << 20))
    path.write_bytes(bomb_of_zeros)
    assert load(path).endswith("; no weights do")
    path.write_bytes(lied(bomb_of_zeros, 120 << 20))
    assert f"weights.npz claims {120 << 20} bytes, and the file has " in load(path)


@pytest.mark.parametrize("network", registered("networks"))
def test_what_is_spoiled_above_is_sound_before(network: str, load: Load, tmp_path: Path) -> None:
    path = tmp_path / "p.zip"
    path.write_bytes(Parts(network).archive())
    assert load(path) == "loaded"


def test_arrays_of_other_floating_types_and_orders_load(load: Load, tmp_path: Path) -> None:
    path, parts = tmp_path / "p.zip", Parts()
    array = np.load(io.BytesIO(parts.arrays[FIRST]))
    path.write_bytes(parts.with_array(FIRST, npy(np.asfortranarray(array.astype(np.float64)))))
    assert load(path) == "loaded"


def test_what_is_no_plain_file_is_refused(load: Load, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    for path in (tmp_path, tmp_path / "pipe.zip", Path("/dev/zero"), tmp_path / "missing.zip"):
        assert load(path).startswith(f"refused: {path}")


SET = Parts("set")
SET_WEIGHTS = SET.weights()
SPOILED = SET.archive(SET_WEIGHTS)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, len(SPOILED) - 1) | st.integers(-200, -1), st.integers(0, 255)), max_size=8),
    st.integers(0, len(SPOILED)) | st.just(len(SPOILED)),
)
def test_a_spoiled_file_is_loaded_or_refused(
    load: Load, tmp_path: Path, changes: list[tuple[int, int]], length: int
) -> None:
    content = bytearray(SPOILED)
    for at, value in changes:
        content[at] = value
    (tmp_path / "p.zip").write_bytes(content[:length])
    outcome = load(tmp_path / "p.zip")
    assert outcome == "loaded" or outcome.startswith(f"refused: {tmp_path}/p.zip")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed=st.dictionaries(st.sampled_from(sorted(SET.schema)), JUNK | st.lists(st.integers(-5, 100)), max_size=2))
def test_a_schema_with_anything_in_a_field_is_loaded_or_refused(
    load: Load, tmp_path: Path, changed: dict[str, Any]
) -> None:
    (tmp_path / "p.zip").write_bytes(SET.archive(SET_WEIGHTS, json.dumps(SET.schema | changed).encode()))
    outcome = load(tmp_path / "p.zip")
    assert outcome == "loaded" or outcome.startswith(f"refused: {tmp_path}/p.zip")


def test_a_saved_policy_is_loaded_in_that_process(load: Load, tmp_path: Path) -> None:
    schema = schema_of(
        algorithm="ppo", network="mlp", action="gpu", observation="patent", waiting=False, node_gpus=(1,) * 512
    )
    save_policy(tmp_path / "p.zip", schema, untrained_network(schema))
    assert load(tmp_path / "p.zip") == "loaded"
