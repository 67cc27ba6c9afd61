"""Files that claim to be models of Stable-Baselines3: nothing in them runs, and they are refused in one line."""

import base64
import io
import json
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stable_baselines3 import PPO

from longshore.agents.sb3 import EnvironmentHints, import_model
from longshore.cluster.files.errors import CheckpointError
from longshore.envs.gymnasium_envs import PlacementEnv
from tests.envs.random_run import small_problem

MARKER = Path("executed")  # in the folder of a test, which is the working one
Entries = dict[str, bytes]


class Bomb:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (MARKER,))


class Sound(bytes):
    """A file that is to be spoiled, which no failing test prints."""

    def __repr__(self) -> str:
        return "a sound model"


def entries_of(content: bytes) -> Entries:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(entries: Entries, method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


@pytest.fixture(scope="module")
def sound() -> bytes:
    model = PPO("MlpPolicy", PlacementEnv(small_problem(1)), policy_kwargs={"net_arch": [4]}, device="cpu")
    file = io.BytesIO()
    model.save(file)
    return Sound(file.getvalue())


def with_entry(name: str, content: bytes) -> Callable[[Entries], bytes]:
    return lambda entries: zipped(entries | {name: content})


def with_data(**changes: Any) -> Callable[[Entries], bytes]:
    return lambda entries: zipped(entries | {"data": json.dumps(json.loads(entries["data"]) | changes).encode()})


def with_weights(change: Callable[[Entries], Entries]) -> Callable[[Entries], bytes]:
    return lambda entries: zipped(entries | {"policy.pth": zipped(change(entries_of(entries["policy.pth"])))})


def pickled(content: bytes) -> Callable[[Entries], bytes]:
    return with_weights(lambda inner: inner | {next(name for name in inner if "data.pkl" in name): content})


def saved(value: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def tensor(size: tuple[int, ...], stride: tuple[int, ...], storage: str = "FloatStorage", key: str = "0") -> bytes:
    """Return the pickle of a dict of one tensor of any claimed size."""

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"I%d\n" % value for value in values) + b"t"

    at = b"(X\x07\x00\x00\x00storagectorch\n%s\nX\x01\x00\x00\x00%sX\x03\x00\x00\x00cpuI9\ntQ"
    first = at % (storage.encode(), key.encode())
    made = b"(" + first + b"I0\n" + numbers(size) + numbers(stride) + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n" + made + b"u."


HOSTILE: dict[str, Callable[[Entries], bytes]] = {
    "weights that run": with_entry("policy.pth", pickle.dumps(Bomb())),
    "weights that run, as PyTorch saves": lambda entries: zipped(entries | {"policy.pth": saved({"w": Bomb()})}),
    "weights that run, of the older format": lambda entries: zipped(
        entries | {"policy.pth": saved({"w": Bomb()}, _use_new_zipfile_serialization=False)}
    ),
    "a pickle that runs": pickled(pickle.dumps(Bomb(), 2)),
    "a pickle that calls system": pickled(b"cos\nsystem\n(X\x0e\x00\x00\x00touch executedtR."),
    "a pickle that calls by a name on the stack": pickled(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x05touch\x85R."),
    "a pickle that builds an object": pickled(b"ccollections\nOrderedDict\n)\x81}b."),
    "a pickle of an extension": pickled(b"\x82\x01."),
    "a pickle that asks 4 TB": pickled(tensor((10**6, 10**6), (10**6, 1))),
    "a pickle that asks 4 TB of one number": pickled(tensor((10**6, 10**6), (0, 0))),
    "a pickle of negative sizes": pickled(tensor((-1, 5), (5, 1))),
    "a pickle of odd numbers": pickled(tensor((2,), (1,), "BoolStorage")),
    "a pickle of numbers elsewhere": pickled(tensor((2,), (1,), key="../../data")),
    "a pickle of texts": pickled(b"X\xff\xff\xff\x7fabc."),
    "a pickle of a huge number": pickled(b"\x8b\xff\xff\xff\x7f1."),
    "a pickle of digits": pickled(b"I" + b"1" * 200_000 + b"\n."),
    "a pickle of a distant memo": pickled(b")r\xff\xff\xff\x7f."),
    "a pickle of marks": pickled(b"(" * 200_000 + b"."),
    "a pickle of tuples in tuples": pickled(b")" + b"q\x00h\x00\x86" * 60_000 + b"."),
    "a dict whose name takes ever to hash": pickled(b"})" + b"q\x00h\x00\x86" * 60_000 + b"Ns."),
    "a pickle that is long": pickled(b")0" * 300_000 + b"."),
    "a pickle that stops at once": pickled(b"."),
    "a pickle of nothing": pickled(b""),
    "a list of numbers": lambda entries: zipped(entries | {"policy.pth": saved([1, 2])}),
    "weights of whole numbers": lambda entries: zipped(entries | {"policy.pth": saved({"w": torch.arange(4)})}),
    "weights that are packed": lambda entries: zipped(
        entries | {"policy.pth": zipped(entries_of(entries["policy.pth"]), zipfile.ZIP_DEFLATED)}
    ),
    "weights that are not finite": lambda entries: zipped(
        entries | {"policy.pth": saved({"w": torch.full((2,), torch.nan)})}
    ),
    "weights of another network": lambda entries: zipped(entries | {"policy.pth": saved({"w": torch.zeros(2, 2)})}),
    "a bomb": lambda entries: zipped(entries | {"data": bytes(1 << 28)}, zipfile.ZIP_DEFLATED),
    "data that is nested deeply": with_entry("data", b"[" * 1_000_000),
    "data that is a list": with_entry("data", b"[]"),
    "data that is no text": with_entry("data", b"\xff\xfe\x00"),
    "another class": with_data(policy_class={":serialized:": base64.b64encode(pickle.dumps(Bomb())).decode()}),
    "a class by a long name": with_data(policy_class={"__module__": "x\n" * 10_000}),
    "another activation": with_data(policy_kwargs={"activation_fn": "<class 'theirs.Odd'>"}),
    "another extractor": with_data(policy_kwargs={"features_extractor_class": "<class 'theirs.Odd'>"}),
    "a space of a million nodes": with_data(
        observation_space={"longshore": {
            "action": "node", "observation": "full", "waiting": False, "node_gpus": [1] * 1_000_000,
        }}
    ),
    "no data": lambda entries: zipped({name: it for name, it in entries.items() if name != "data"}),
    "no weights": lambda entries: zipped({name: it for name, it in entries.items() if name != "policy.pth"}),
    "many entries": lambda entries: zipped(entries | {str(number): b"" for number in range(1000)}),
    "nothing": lambda entries: b"",
    "no archive": lambda entries: b"PK" + bytes(100),
}  # fmt: skip


def reads(content: bytes, folder: Path) -> str:
    """Return why a file is refused, "" if it is taken."""
    path = folder / "model.zip"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        import_model(path, EnvironmentHints())
    except CheckpointError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 1500
        assert message.startswith(str(path))
        return message
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 * len(content) + (32 << 20)
    return ""


@pytest.mark.few(14)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused_and_nothing_in_it_runs(
    name: str, sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reads(HOSTILE[name](entries_of(sound)), tmp_path)
    assert not MARKER.exists()


def test_what_is_pickled_beside_the_weights_is_never_unpickled(
    sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bomb = {":type:": "<class 'dict'>", ":serialized:": base64.b64encode(pickle.dumps(Bomb())).decode()}
    data = json.loads(entries_of(sound)["data"])
    spoiled = {name: value | bomb if isinstance(value, dict) else value for name, value in data.items()}
    everywhere = {"pytorch_variables.pth": pickle.dumps(Bomb()), "policy.optimizer.pth": pickle.dumps(Bomb())}
    content = zipped(entries_of(sound) | everywhere | {"data": json.dumps(spoiled | {"clip_range": bomb}).encode()})
    assert reads(content, tmp_path) == ""
    assert not MARKER.exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert MARKER.exists()  # unpickled, it would have run


def test_weights_of_other_floating_numbers_are_read(sound: bytes, tmp_path: Path) -> None:
    weights = torch.load(io.BytesIO(entries_of(sound)["policy.pth"]), weights_only=True)
    for kind in (torch.float64, torch.float16):
        other = {name: tensor.to(kind) for name, tensor in weights.items()}
        assert reads(zipped(entries_of(sound) | {"policy.pth": saved(other)}), tmp_path) == ""
    path = tmp_path / "model.zip"
    found = import_model(path, EnvironmentHints())[1].state_dict()["policy.0.weight"].numpy()
    expected = weights["mlp_extractor.policy_net.0.weight"].to(torch.float16).float().numpy()
    assert np.array_equal(found, expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    share=st.just(1.0) | st.floats(0, 1),
)
def test_a_spoiled_model_is_read_or_refused(
    sound: bytes, tmp_path: Path, changes: list[tuple[float, int]], share: float
) -> None:
    content = bytearray(sound)
    for at, value in changes:
        content[int(at * len(content))] = value
    reads(bytes(content[: int(share * len(content))]), tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_spoiled_pickle_is_read_or_refused(sound: bytes, tmp_path: Path, changes: list[tuple[float, int]]) -> None:
    inner = entries_of(entries_of(sound)["policy.pth"])
    content = bytearray(next(it for name, it in inner.items() if "data.pkl" in name))
    for at, value in changes:
        content[int(at * len(content))] = value
    reads(pickled(bytes(content))(entries_of(sound)), tmp_path)
