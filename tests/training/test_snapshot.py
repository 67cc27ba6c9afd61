"""What a snapshot holds is what a run could have left, or it is refused."""

import io
import os
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from hypothesis.extra.numpy import arrays as arrays_of
from torch import nn
from torch.optim import Adam, RMSprop

from longshore.cluster.files.errors import CheckpointError, EndlessError
from longshore.cluster.state.state import State
from longshore.envs.batch import AgentView, Batch
from longshore.training.snapshot import (
    Arrays,
    learned_arrays,
    read_arrays,
    restore_batch,
    restore_learned,
    restore_torch_rng,
    write_arrays,
)
from tests.envs.copied_run import problem
from tests.envs.random_run import open_actions
from tests.support.budgets import examples


def played(view: AgentView, steps: int = 9, *, learns: bool = False) -> Batch:
    run = problem(order="easy")
    batch = Batch(run._replace(rules=run.rules._replace(estimated_hazards=learns)), view, 3)
    rng = np.random.default_rng(0)
    batch.reset()
    for _ in range(steps):
        batch.step(open_actions(batch.masks, rng))
        batch.reset_rows(np.flatnonzero(batch.ended))
    return batch


def kept(batch: Batch) -> Arrays:
    """Return copies of what a snapshot holds of environments."""
    arrays: Arrays = {f"state/{name}": value.copy() for name, value in batch.sim.state._asdict().items()}
    return arrays | {f"batch/{name}": value.copy() for name, value in batch.snapshot_arrays().items()}


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("action", ["node", "gpu", "candidate"])
def test_environments_go_on_where_they_were_kept(action: str, *, learns: bool) -> None:
    long = 300 if action == "gpu" else 99  # steps until a fault has come
    batch, twin = (played(AgentView(action, reward="dt"), steps, learns=learns) for steps in (long, 0))
    assert bool(batch.sim.state.observed_faults.any()) is learns
    restore_batch(kept(batch), twin)
    for each in (batch, twin):
        rng = np.random.default_rng(1)
        for _ in range(60):
            each.step(open_actions(each.masks, rng))
            each.reset_rows(np.flatnonzero(each.ended))
    assert np.array_equal(batch.observations, twin.observations)
    mine, theirs = kept(batch), kept(twin)
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine if not name.startswith("state/"))
    assert np.array_equal(mine["state/now_s"], theirs["state/now_s"])


def test_a_snapshot_has_all_of_the_state() -> None:
    batch = played(AgentView("node"))
    for field in State._fields:
        with pytest.raises(KeyError, match=f"state/{field}"):
            restore_batch({name: each for name, each in kept(batch).items() if name != f"state/{field}"}, batch)


def test_half_a_placement_is_refused_where_moves_are_whole_ones() -> None:
    batch = played(AgentView("node", reward="dt"))
    assert batch.sim.state.picked_nodes.any()
    restore_batch(kept(batch), played(AgentView("node", reward="dt"), 0))
    with pytest.raises(ValueError, match=r"state\.picked_nodes\[.*\] is .*, expected none before a whole placement"):
        restore_batch(kept(batch), played(AgentView("candidate", reward="dt"), 0))


def test_environments_are_left_as_they_were_where_something_is_refused() -> None:
    batch = played(AgentView("node"))
    before = kept(batch)
    for name, array in before.items():
        with pytest.raises(ValueError, match=name):
            restore_batch(kept(played(AgentView("node"), 20)) | {name: array[:1]}, batch)
    after = kept(batch)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def learned(kind: type[Adam | RMSprop]) -> tuple[nn.Linear, Adam | RMSprop]:
    """Return weights after a step of an optimiser."""
    network = nn.Linear(3, 2)
    optimizer = kind(network.parameters())
    network(torch.ones(3)).sum().backward()
    optimizer.step()
    return network, optimizer


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *((kind, "step", value) for kind in (Adam, RMSprop) for value in (0.0, -1.0)),
        *((Adam, "exp_avg", value) for value in (-3e38, 3e38)),
        *((Adam, "exp_avg_sq", value) for value in (-1e-9, 3e38)),
        *((RMSprop, "square_avg", value) for value in (-1e-9, 3e38)),
    ],
)
def test_what_no_step_of_an_optimiser_leaves_is_refused(kind: type[Adam | RMSprop], name: str, value: float) -> None:
    arrays = learned_arrays(*learned(kind))
    restore_learned(arrays, *learned(kind))
    arrays[f"adam/1/{name}"] = np.full_like(arrays[f"adam/1/{name}"], value)
    with pytest.raises(ValueError, match=f"adam/1/{name} holds .*, expected "):
        restore_learned(arrays, *learned(kind))


ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"c": np.ascontiguousarray, "fortran": np.asfortranarray}


@given(
    st.dictionaries(
        st.text("ab/.1\u00e9", min_size=1, max_size=9),
        st.sampled_from(("?", "u1", "i1", "u2", "i4", "i8", "u8", "f4", "f8", ">i4"))
        .flatmap(lambda kind: arrays_of(kind, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))),
        max_size=5,
    ),
    st.sampled_from(sorted(ORDERS)),
)  # fmt: skip
def test_arrays_are_read_as_they_were_written(arrays: Arrays, order: str) -> None:
    arrays = {name: ORDERS[order](array) if array.ndim else array for name, array in arrays.items()}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        write_arrays(path, arrays)
        with read_arrays(path) as found, np.load(path) as as_numpy:
            assert found.keys() == arrays.keys()
            for name, array in found.items():
                expected = as_numpy[name]
                assert (array.dtype, array.shape, array.flags.f_contiguous, array.flags.c_contiguous) == (
                    expected.dtype, expected.shape, expected.flags.f_contiguous, expected.flags.c_contiguous,
                )  # fmt: skip
                assert array.tobytes() == expected.tobytes()
                assert array.flags.writeable
                assert array.flags.owndata


def outcome(content: bytes, folder: Path) -> str:
    """Return the error of a file, empty if it can be read."""
    path, message = folder / "a.npz", ""
    path.write_bytes(content)
    try:
        with read_arrays(path) as arrays:
            assert sum(array.nbytes for array in arrays.values()) <= len(content)
    except CheckpointError as error:
        message = str(error)
    assert message == "" or message.startswith(f"{path} is damaged or of another run: ")
    assert "\n" not in message
    return message


def small_file(folder: Path) -> bytes:
    write_arrays(
        folder / "a.npz", {"a/b": np.arange(3), "is_c": np.array([True, False]), "d": np.array(2.5, np.float32)}
    )
    return (folder / "a.npz").read_bytes()


@pytest.mark.full
def test_a_file_of_which_any_byte_is_another_is_read_or_refused(tmp_path: Path) -> None:
    content = small_file(tmp_path)
    assert outcome(content, tmp_path) == ""
    refused = 0
    for at in range(len(content)):
        for bit in (1, 2, 16, 128):
            refused += outcome(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :], tmp_path) != ""
        assert outcome(content[:at], tmp_path)
    assert refused > len(content)


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


SOUND = npy(np.arange(6.0).reshape(2, 3))


@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_an_array_of_which_any_byte_is_another_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    spoiled = bytearray(SOUND)
    for at, value in changes:
        spoiled[at] = value
    with TemporaryDirectory() as folder:
        outcome(zipped({"a.npy": bytes(spoiled)}), Path(folder))


def headed(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + bytes(48)


def shaped(shape: str, kind: str = "'<f8'") -> bytes:
    return headed(f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}")


def many_entries(count: int) -> bytes:
    """Return an archive whose list names one entry many times."""
    content = zipped({"a.npy": SOUND})
    at, end = content.rindex(b"PK\x01\x02"), content[-22:]
    listed = content[at:-22] * count
    counts = struct.pack("<2HL", min(count, 65535), min(count, 65535), len(listed))
    return content[:at] + listed + end[:8] + counts + end[16:]


def wide(listed_bytes: int) -> bytes:
    """Return an archive with a second end, in 64 bits, with another length of the list."""
    content = zipped({"a.npy": SOUND})
    at = content.rindex(b"PK\x01\x02")
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, listed_bytes, at)
    return content[:-22] + record + struct.pack("<4sLQL", b"PK\x06\x07", 0, len(content) - 22, 1) + content[-22:]


def claimed(at: int, kind: str, value: int) -> bytes:
    """Return an archive of one entry whose list has something else."""
    content = bytearray(zipped({"a.npy": SOUND}))
    struct.pack_into(kind, content, content.rindex(b"PK\x01\x02") + at, value)
    return bytes(content)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "10 TB": lambda: zipped({"a.npy": shaped("(10000000000000,)")}),
    "8 TB": lambda: zipped({"a.npy": shaped("(1000000, 1000000)")}),
    "no product of axes": lambda: zipped({"a.npy": shaped("(0, 999999999999, 999999999999)")[:-48]}),
    "many axes": lambda: zipped({"a.npy": shaped(f"({'1, ' * 200})")[:-40]}),
    "a text that does not end": lambda: zipped({"a.npy": headed("{'descr': '<f8")}),
    "brackets that do not end": lambda: zipped({"a.npy": headed("{'descr': (")}),
    "brackets in brackets": lambda: zipped({"a.npy": headed("(" * 9000)}),
    "minus signs": lambda: zipped({"a.npy": headed("-" * 9000 + "1")}),
    "no array": lambda: zipped({"a.npy": b"0123456789"}),
    "nothing": lambda: zipped({"a.npy": b""}),
    "no entry": lambda: b"",
    "an array alone": lambda: SOUND,
    "an entry that is called otherwise": lambda: zipped({"a.txt": SOUND}),
    "an entry that is called oddly": lambda: zipped({"\x1b[2J.npy": SOUND}),
    "objects": lambda: zipped({"a.npy": shaped("(1,)", "'|O'")}),
    "texts": lambda: zipped({"a.npy": shaped("(1,)", "'<U12'")}),
    "fields": lambda: zipped({"a.npy": shaped("(1,)", "[('a', '<f8')]")}),
    "a truth of 2": lambda: zipped({"a.npy": shaped("(48,)", "'|b1'").replace(bytes(48), bytes(47) + b"\2")}),
    "another format": lambda: zipped({"a.npy": SOUND.replace(b"NUMPY\x01", b"NUMPY\x02")}),
    "too few numbers": lambda: zipped({"a.npy": SOUND[:-1]}),
    "too many numbers": lambda: zipped({"a.npy": SOUND + b"1"}),
    "deflated": lambda: zipped({"a.npy": SOUND}, zipfile.ZIP_DEFLATED),
    "bzip2": lambda: zipped({"a.npy": SOUND}, zipfile.ZIP_BZIP2),
    "lzma": lambda: zipped({"a.npy": SOUND}, zipfile.ZIP_LZMA),
    "a damaged lzma": lambda: zipped({"a.npy": SOUND}, zipfile.ZIP_LZMA).replace(b"\x5d\0\0", b"\xff\xff\xff"),
    "a bomb": lambda: zipped({"a.npy": shaped("(1000000,)") + bytes(8_000_000)}, zipfile.ZIP_DEFLATED),
    "an unknown packing": lambda: claimed(10, "<H", 77),
    "a secret": lambda: claimed(8, "<H", 1),
    "4 GB": lambda: claimed(24, "<L", 2**32 - 2),
    "4 GB on file": lambda: claimed(20, "<L", 2**32 - 2),
    "an entry behind the end": lambda: claimed(42, "<L", 2**32 - 2),
    "an entry of version 99": lambda: claimed(6, "<B", 99),
    "an array a thousand times": lambda: many_entries(1000),
    "a list of a million": lambda: many_entries(1_000_000),
    "a list that goes on": lambda: wide(2**60),
    "a list that has nothing": lambda: wide(0),
    "a comment": lambda: zipped({"a.npy": SOUND})[:-2] + b"\1\0x",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    assert outcome(HOSTILE[name](), tmp_path)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero"), tmp_path / "none"):
        with pytest.raises(CheckpointError, match="damaged or of another run"), read_arrays(path):
            pass


def test_a_file_that_counts_in_64_bits_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zipfile.ZIP64_LIMIT", 100)  # as if it had some gigabytes
    content = small_file(tmp_path)
    assert b"PK\x06\x07" in content
    assert outcome(content, tmp_path) == ""


@cache
def played_arrays() -> Arrays:
    return kept(played(AgentView("node", reward="dt")))


@settings(max_examples=examples(200))
@given(st.data(), st.integers(0, 2**20), st.integers(0, 7))
def test_environments_of_which_any_bit_is_another_are_played_or_refused(data: st.DataObject, at: int, bit: int) -> None:
    arrays = played_arrays()
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays[name].copy()
    flat = array.reshape(-1).view(np.uint8)
    if flat.size:
        flat[at % flat.size] ^= 1 << bit
    batch = played(AgentView("node", reward="dt"), 0)
    try:
        restore_batch(arrays | {name: array}, batch)
    except ValueError:
        return
    rng = np.random.default_rng(1)
    with suppress(EndlessError):
        for _ in range(40):
            batch.step(open_actions(batch.masks, rng))
            assert np.isfinite(batch.rewards).all()
            batch.reset_rows(np.flatnonzero(batch.ended))


DRAWS = (torch.rand, torch.randn, torch.randperm, lambda count: torch.rand(count).exponential_())


@given(st.integers(0, 2**62), st.lists(st.tuples(st.sampled_from(DRAWS), st.integers(0, 1300)), max_size=4))
def test_torch_draws_on_from_wherever_it_was(seed: int, draws: list[tuple[Callable[[int], object], int]]) -> None:
    torch.manual_seed(seed)
    for draw, count in draws:
        draw(count)
    kept = {"torch": torch.get_rng_state().numpy().copy()}
    expected = torch.rand(2000)
    restore_torch_rng(kept)
    assert torch.equal(torch.rand(2000), expected)
