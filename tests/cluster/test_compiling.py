"""How kernels are compiled and kept: which share code, what a second process compiles, and what is compiled ahead."""

import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.networks.candidates import CandidatePolicy
from longshore.agents.rehearsals import decision_rehearsals_of
from longshore.agents.rehearsals import rehearsals_of as rehearsals_of_runs
from longshore.cluster.files.errors import PluginError
from longshore.cluster.files.processes import free_port
from longshore.cluster.kernels import ahead, kept
from longshore.cluster.kernels.ahead import (
    CompileProgress,
    _callees_first,
    _load_rehearsal,
    compile_ahead,
    unplayed_rehearsals,
)
from longshore.cluster.kernels.compiled import Kernel, kernel
from longshore.cluster.kernels.kept import by_one_process
from longshore.commands.policies import GROUP_NAMES, SERVE
from longshore.scheduler.mirror.rehearsal import rehearsals_of
from longshore.training.rehearsals import REHEARSAL_GROUPS
from tests.checkout import ROOT
from tests.command_line import Command, words_of
from tests.support import processes

pytestmark = pytest.mark.long

needs_numba = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="kernels are plain Python here")  # type: ignore[attr-defined]


@kernel
def added(a: int, b: int) -> int:
    return a + b


@kernel
def sums(narrow: Any, wide: Any, out: Any) -> None:
    for i in range(narrow.size):
        out[i] = added(narrow[i], wide[i]) + added(wide[i], 3) + added(7, narrow[i])


@needs_numba
@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**40), 2**40)), max_size=4))
def test_whole_numbers_of_all_widths_are_one_part_of_a_program(pairs: list[tuple[int, int]]) -> None:
    narrow = np.array([a for a, _ in pairs], dtype=np.int32)
    wide = np.array([b for _, b in pairs], dtype=np.int64)
    out = np.zeros(len(pairs), dtype=np.int64)
    sums(narrow, wide, out)
    assert out.tolist() == [2 * a + 2 * b + 10 for a, b in pairs]
    assert isinstance(added, Kernel)
    assert len(added._parts) <= 1  # none where the whole program is kept from an earlier run


@needs_numba
@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, int])
def test_python_calls_one_program_with_whole_numbers_of_all_widths(kind: Callable[[int], Any]) -> None:
    assert added(kind(100), kind(27)) == 127
    assert isinstance(added, Kernel)
    assert len(added.overloads) == 1


@needs_numba
def test_an_error_that_a_part_raises_reaches_who_called_the_program() -> None:
    @kernel
    def refuses(a: int) -> int:
        if a < 0:
            raise ValueError("negative")
        return a

    @kernel
    def asks(a: int) -> int:
        return refuses(a) + 1

    assert asks(1) == 2
    with pytest.raises(ValueError, match="negative"):
        asks(-1)


@needs_numba
def test_what_another_package_compiled_by_numba_alone_can_call_a_kernel() -> None:
    jit: Any = numba.njit
    assert jit(lambda a: added(a, 1) * 2)(4) == 10


MODULE = """
from longshore.cluster.kernels.ahead import Rehearsal
from longshore.cluster.kernels.compiled import kernel

@kernel
def leaf(a: int) -> int:
    return a + 1

@kernel
def inner(a: int) -> int:
    return leaf(a) * 2

@kernel
def first(a: int) -> int:
    return inner(a) + leaf(a)

@kernel
def second(a: int) -> int:
    return inner(a) - leaf(a)

def one(): return Rehearsal([first], [], lambda: first(1))
def two(): return Rehearsal([second], [], lambda: second(1))
def bad(): return Rehearsal([], [], lambda: 1 / 0)
def missing(): raise OSError("no such policy")
"""
RUN = """
import json, sys
from numba.core import event
from longshore.cluster.kernels import ahead, kept
if sys.argv[2] == "read-only":
    kept.can_be_kept.cache_clear()
    kept.can_be_kept = lambda: False
import small_kernels
compiled = []
class Listener(event.Listener):
    def on_start(self, event): compiled.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event): pass
event.register("numba:compile", Listener())
value = getattr(small_kernels, sys.argv[1])(5)
print(json.dumps([value, sorted(compiled)]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of kernels, in which nothing is compiled yet."""
    (tmp_path / "small_kernels.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    kept.cache_folder.cache_clear()
    kept.can_be_kept.cache_clear()
    yield tmp_path
    kept.cache_folder.cache_clear()
    kept.can_be_kept.cache_clear()


def run(folder: Path, name: str, how: str = "as usual", **variables: str) -> tuple[int, list[str]]:
    """Call a kernel in a process of its own; return its value, and what was compiled for that."""
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    command = [sys.executable, "-c", RUN, name, how]
    done = processes.run(command, env=environment, capture_output=True, check=True, timeout_s=120)
    value, compiled = json.loads(done.stdout)
    return value, compiled


@needs_numba
def test_a_second_program_shares_parts_and_a_second_process_compiles_nothing(folder: Path) -> None:
    assert run(folder, "first") == (18, ["first", "inner", "leaf"])
    assert run(folder, "second") == (6, ["second"])
    assert run(folder, "first", "read-only") == (18, [])
    (folder / "small_kernels.py").write_text(MODULE.replace("a + 1", "a + 2"))
    assert run(folder, "second") == (7, ["inner", "leaf", "second"])


@needs_numba
def test_where_nothing_can_be_kept_kernels_run_all_the_same(folder: Path) -> None:
    assert run(folder, "second", NUMBA_CACHE_DIR=os.devnull) == (6, ["inner", "leaf", "second"])


@needs_numba
def test_processes_compile_each_kernel_once_and_later_there_is_nothing_to_do(folder: Path) -> None:
    stands = list[CompileProgress]()
    names = ["small_kernels:one", "small_kernels:two"]
    assert unplayed_rehearsals([*names, *names]) == names
    compile_ahead(names, stands.append, processes=2)
    assert stands[-1].done == stands[-1].all == 6  # two of them as Python calls them, too
    assert unplayed_rehearsals(names) == []
    assert run(folder, "first")[1] == run(folder, "second")[1] == []
    parts = [path for path in (folder / "cache").rglob("part-*.nbc") if "small_kernels" in path.name]
    assert len(parts) == 4  # leaf and inner, and both programs as parts of others


@needs_numba
def test_what_fails_is_told_by_its_name_and_keeps_nothing_else_from_being_compiled(folder: Path) -> None:
    with pytest.raises(PluginError) as raised:
        compile_ahead(["small_kernels:bad", "small_kernels:one", "small_kernels:missing"], lambda _: None, processes=1)
    for name, why in (("bad", "ZeroDivisionError"), ("missing", "no such policy")):
        assert f"small_kernels:{name}" in str(raised.value)
        assert why in str(raised.value)
    assert unplayed_rehearsals(["small_kernels:bad", "small_kernels:one"]) == ["small_kernels:bad"]


def test_code_of_ours_is_kept_by_its_place_in_the_package_wherever_that_is_installed() -> None:
    for module in (ahead, kept):
        place = Path(kept.Locator(compile_ahead, str(module.__file__)).get_cache_path())
        assert place == kept.cache_folder() / "longshore" / "cluster" / "kernels"
    elsewhere = kept.Locator(compile_ahead, __file__).get_cache_path()
    assert elsewhere != kept.Locator(compile_ahead, str(Path("/", *Path(__file__).parts[2:]))).get_cache_path()


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/longshore/kernels"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": ""}, "/home/ada/.cache/longshore/kernels"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/var/cache"}, "/var/cache/longshore/kernels"),
        ({"XDG_CACHE_HOME": "/var/cache", "NUMBA_CACHE_DIR": "/srv/numba"}, "/srv/numba"),
    ],
)
def test_the_environment_says_where_kernels_are_kept(
    variables: dict[str, str], place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = kept.cache_folder()
    assert own.parent == folder / "cache"
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    kept.cache_folder.cache_clear()
    assert kept.cache_folder() == Path(place, own.name)


def test_one_at_a_time_does_a_work_and_others_need_not_wait(folder: Path) -> None:
    with (
        by_one_process("a work") as first,
        by_one_process("a work", waits=False) as second,
        by_one_process("another", waits=False) as other,
    ):
        assert (first, second, other) == (True, False, True)
    with by_one_process("a work", waits=False) as again:
        assert again


@needs_numba
def test_a_kernel_stands_behind_all_that_it_calls() -> None:
    found = _callees_first([sums, "no kernel"])
    assert found == [added, sums]


def test_the_command_offers_all_groups_and_each_has_rehearsals() -> None:
    assert set(GROUP_NAMES) == {*REHEARSAL_GROUPS, SERVE}
    for name in (*(name for names in REHEARSAL_GROUPS.values() for name in names), *rehearsals_of("pack")):
        assert callable(_load_rehearsal(name).play)


def test_a_group_that_does_not_exist_and_a_configuration_of_another_group_are_refused(longshore: Command) -> None:
    for arguments, named in ((("heuristic",), "'heuristic'"), (("networks", "--config", "none.yaml"), "serve")):
        done = longshore("compile", *arguments)
        assert (done.status, done.out) == (2, "")
        assert named in done.err


@pytest.mark.full
@needs_numba
def test_a_live_scheduler_that_rehearsed_has_nothing_left_to_compile() -> None:
    # In a process of its own: others may have called what is left.
    code = """
import ast
import inspect
from longshore.cluster.kernels.compiled import Kernel
from longshore.cluster.simulator import engine, faults, jobs
from longshore.scheduler.mirror import cluster_mirror
from longshore.scheduler.mirror.rehearsal import rehearse_mirror_calls
rehearse_mirror_calls()
modules = {"engine": engine, "faults": faults, "jobs": jobs}
used = [it for it in ast.walk(ast.parse(inspect.getsource(cluster_mirror))) if isinstance(it, ast.Attribute)]
calls = [(ast.unparse(it.value), it.attr) for it in used]
places = [vars(cluster_mirror)]
places += [{name: getattr(modules[module], name)} for module, name in calls if module in modules]
print({name for place in places for name, it in place.items() if isinstance(it, Kernel) and not it.overloads})
"""
    done = processes.run([sys.executable, "-c", code], capture_output=True, check=True, timeout_s=300)
    assert done.stdout.strip() == "set()"


@pytest.mark.full
@needs_numba
def test_all_that_rehearsals_name_is_called_by_one_of_them() -> None:
    # In a process of its own: others may have called what is left.
    code = """
import sys
from longshore.cluster.kernels.ahead import _load_rehearsal
from longshore.cluster.kernels.compiled import Kernel
rehearsals = [_load_rehearsal(name) for name in sys.argv[1:]]
for it in rehearsals:
    it.play()
print({each.key for it in rehearsals for each in it.kernels if isinstance(each, Kernel) and not each.overloads})
"""
    line = [sys.executable, "-c", code, *(name for names in REHEARSAL_GROUPS.values() for name in names)]
    done = processes.run(line, capture_output=True, check=True, timeout_s=300)
    assert done.stdout.strip() == "set()"


def test_a_run_needs_what_its_policies_are_made_of_and_no_more() -> None:
    from tests.policies_under_test import POLICIES

    of = {name: rehearsals_of_runs([policy]) for name, policy in POLICIES.items()}
    assert of["pack"] == of["patient"] == REHEARSAL_GROUPS["heuristics"]
    for name, kind in (
        ("untrained-node", "networks"),
        ("untrained-candidate", "candidates"),
        ("rollout:patient", "rollouts:heuristics"),
        ("rollout:untrained-candidate", "rollouts:candidates"),
    ):
        assert of[name] == [*REHEARSAL_GROUPS["heuristics"], f"longshore.agents.rehearsals:{kind}"]


def test_after_all_groups_nothing_is_left_for_a_scheduler_and_its_policy() -> None:
    groups = {name for names in REHEARSAL_GROUPS.values() for name in names}
    for path in SHIPPED:
        for policy in (str(path), f"rollout:{path}", "rollout:patient"):
            assert set(decision_rehearsals_of(policy)) <= groups


SHIPPED = sorted((ROOT / "checkpoints").glob("*.zip"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda it: it.stem)
def test_what_a_checkpoint_needs_is_known_before_it_is_loaded(path: Path) -> None:
    kind = "candidates" if isinstance(load_policy(path), CandidatePolicy) else "networks"
    assert decision_rehearsals_of(str(path)) == [f"longshore.agents.rehearsals:decisions:{kind}"]
    of_rollouts = [f"longshore.agents.rehearsals:rollouts:{kind}"] if kind == "candidates" else []
    assert (
        decision_rehearsals_of(f"rollout:{path}") == decision_rehearsals_of(f"rollout:{path}@20ms,h16") == of_rollouts
    )


@pytest.mark.parametrize(
    "name", ["pack", "patient@0.8", "a-plug-in", "rollout:a-plug-in", "none.zip", "broken.zip", "folder.zip", "odd.zip"]
)
def test_what_cannot_be_known_is_left_to_who_loads_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04" + bytes(100))
    (tmp_path / "folder.zip").mkdir()
    with zipfile.ZipFile(tmp_path / "odd.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", json.dumps({"network": None}))
        archive.writestr("weights.npz", b"")
    assert decision_rehearsals_of(str(tmp_path / name) if name.endswith(".zip") else name) == []


DECIDES = ("patient", *(f"{ROOT}/checkpoints/{it}.zip" for it in ("hetero64", "hetero64-wait", "traces")))


@pytest.mark.full
@needs_numba
def test_who_loads_a_policy_has_nothing_left_to_compile_that_was_rehearsed() -> None:
    # In a process of its own: others may have called what is left. All policies after one rehearsal of each kind.
    code = """
import sys
from longshore.agents.registry import find_policy
from longshore.cluster.kernels.ahead import _load_rehearsal
from longshore.cluster.kernels.compiled import Kernel
from longshore.scheduler.mirror.rehearsal import _small_mirror, rehearsals_of
from longshore.scheduler.policy_host.worker import _warm_up
import gc
for name in rehearsals_of(*sys.argv[1:]):
    _load_rehearsal(name).play()
def programs():
    return {(it.key, str(each)) for it in gc.get_objects() if isinstance(it, Kernel) for each in it.overloads}
before = programs()
for name in sys.argv[1:]:
    _warm_up(find_policy(name), _small_mirror().site)
print(programs() - before)
"""
    names = [*DECIDES, *(f"rollout:{it}@h2" for it in DECIDES[2:]), "rollout:patient"]
    done = processes.run([sys.executable, "-c", code, *names], capture_output=True, check=True, timeout_s=300)
    assert done.stdout.strip() == "set()"


TRAININGS = {
    "group": "--preset hetero64 --steps 2048",
    "distil": "--preset hetero64 --algo distil --steps 64",
    "ppo": "--preset patent4-ours --steps 512",
    "a2c": "--preset patent4-ours --algo a2c --steps 512",
    "patent": "--preset patent4 --steps 512",
}


@pytest.mark.full
@needs_numba
@pytest.mark.parametrize("asked", TRAININGS.values(), ids=TRAININGS)
def test_a_training_has_nothing_left_to_compile_that_was_rehearsed(asked: str, tmp_path: Path) -> None:
    code = """
import sys
from unittest import mock
import gc
from longshore import cli
from longshore.cluster.kernels.ahead import _load_rehearsal
from longshore.cluster.kernels.compiled import Kernel
from longshore.commands import training
def programs():
    return {(it.key, str(each)) for it in gc.get_objects() if isinstance(it, Kernel) for each in it.overloads}
before = set()
def rehearse(names):
    for name in names:
        _load_rehearsal(name).play()
    before.update(programs())
with mock.patch.object(training, "compile_first", rehearse):
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code, end.code
assert before
print(sorted(programs() - before))
"""
    done = processes.run(
        [sys.executable, "-c", code, "train", *asked.split(), "--logdir", str(tmp_path)],
        capture_output=True,
        check=False,
        timeout_s=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


WRONG = {
    "a folder that cannot be made": "train --preset patent4 --steps 100 --logdir {file}/runs",
    "a trace that is none": "train --trace {file} --logdir {runs}",
    "a checkpoint that is none": "train --preset hetero64 --algo group --init {file} --logdir {runs}",
    "a folder of rounds": "train --online {served} --history {file} --logdir {file}/runs",
    "a study's folder": "tune --preset patent4 --steps 100 --logdir {file}/runs",
    "a study's trace": "tune --trace {file} --steps 100 --logdir {runs}",
    "a policy that is none": "evaluate --policy {file} --preset hetero64",
    "a scheduler's policy": "serve --as-root --port {port} --folder {runs} --policy rollout:{file}@h16",
    "a trace of a simulation": "simulate --trace {file} --cluster {cluster} --policy pack",
    "decisions that are none": "policy replay {file} --policy pack",
    "decisions without a past": "policy replay {lines} --policy pack",
}


@pytest.mark.parametrize("asked", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_before_anything_is_compiled(
    asked: str, longshore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiles(*_: object, **__: object) -> list[str]:
        raise AssertionError("it searches for what is to be compiled")

    monkeypatch.setattr(ahead, "unplayed_rehearsals", compiles)
    file, lines = tmp_path / "file", tmp_path / "file.jsonl"
    file.write_text("nothing of the kind\n")
    lines.write_text('{"past": {}}\n')
    places = {"file": file, "lines": lines, "runs": tmp_path / "runs", "cluster": ROOT / "examples/small.yaml"}
    served, port = ROOT / "checkpoints/traces.zip", free_port()
    done = longshore(*words_of(asked, **places, served=served, port=port))
    assert (done.status, done.out.replace("drawing workloads\n", "")) == (2, ""), done
    assert str(file) in done.err
