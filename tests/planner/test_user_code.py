"""Files of users, profiled in a process of their own: what works, and whatever they may do instead."""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from longshore.cluster.files.errors import InputError
from longshore.planner.profile.profiling import ProfilingLimits, profile_model
from tests.support import processes

MODEL = """
import torch
from torch import nn
def build():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.zeros(4, 8)
"""
BUILD = "import os, sys, time, torch\nfrom torch import nn\ndef build():\n    "
LIMITS = ProfilingLimits(time_s=90.0, memory_bytes=2.0 * 2**30)
NAMED, BARE = "nn.Linear(8, 8)", "torch.zeros(4, 8)"

WRONG = {
    "raises": (
        f"{BUILD}raise KeyError('lost')",
        "build: KeyError: 'lost' (line 4 of train.py), with weights and without; correct it, or give a table",
    ),
    "exits": (f"{BUILD}sys.exit(3)", "build: the file ended the process with status 3"),
    "exits hard": (f"{BUILD}os._exit(7)", "its process ended with status 7 and no reply"),
    "exits at import": ("raise SystemExit('bye')", "the file ended the process with status bye"),
    "is killed": (f"{BUILD}os.kill(os.getpid(), 9)", "its process was killed"),
    "crashes": (f"{BUILD}os.kill(os.getpid(), 11)", "its process ended with SIGSEGV"),
    "eats memory": (f"{BUILD}return [bytearray(1 << 28) for _ in range(100)]", "raise --memory-limit"),
    "raises at import": ("x = {}\nx['lost']", "it raised KeyError: 'lost' (line 2 of train.py); run `python"),
    "has a layer that does not fit": (
        f"{BUILD}return nn.Sequential(nn.Linear(8, 8), nn.Linear(9, 9)), {BARE}",
        "build: layer '1' (Linear): RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 9x9)",
    ),
    "has a forward that fails": (
        "class Odd(nn.Linear):\n    def forward(self, x):\n        return self.lost(x)\n".join(
            ("import torch\nfrom torch import nn\n", "def build():\n    return Odd(8, 8), torch.zeros(4, 8)")
        ),
        "AttributeError: 'Odd' object has no attribute 'lost' (line 5 of train.py), with weights and without",
    ),
    "is no Python": ("def build(:", "build: it raised SyntaxError"),
    "has no such function": ("x = 1", "there is no function 'build'; define it"),
    "returns nothing": (f"{BUILD}pass", "it returned nothing; it should return (model, batch)"),
    "returns a number": (f"{BUILD}return 7", "it returned a int; it should return (model, batch)"),
    "returns no model": (f"{BUILD}return 'model', {BARE}", "it returned a str for a model"),
    "returns no batch": (f"{BUILD}return {NAMED}, 'batch'", "it returned a str for a batch"),
    "returns an empty batch": (f"{BUILD}return {NAMED}, torch.zeros(0, 8)", "for a batch"),
    "returns a loss that is none": (f"{BUILD}return {NAMED}, {BARE}, 3", "it returned a int for a loss"),
    "has no parameters": (f"{BUILD}return nn.ReLU(), {BARE}", "the model has no parameter to train"),
    "does not fit its batch": (f"{BUILD}return {NAMED}, torch.zeros(4, 9)", "without weights: RuntimeError"),
    "has a hint that is none": (f"profile_hint = 3\n{MODEL}", "profile_hint is no dict"),
    "has a hint of nonsense": (f"profile_hint = {{'x': {{'flops': 1}}}}\n{MODEL}", "profile_hint: forward_flops"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_profiled_is_reported_in_one_line(tmp_path: Path, name: str) -> None:
    text, message = WRONG[name]
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        profile_model(f"{path}:build", LIMITS)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}")
    assert "\n" not in str(error.value)


@pytest.mark.full
def test_a_file_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    path, child = tmp_path / "train.py", tmp_path / "child"
    text = f"{BUILD}import subprocess\n    started = subprocess.Popen(['sleep', '600'])\n"
    text += f"    open({str(child)!r}, 'w').write(str(started.pid))\n    time.sleep(600)"
    path.write_text(text)
    with pytest.raises(InputError, match=r"build was not profiled after .* s; let it only build the model"):
        profile_model(f"{path}:build", ProfilingLimits(time_s=15.0))
    pid, until = int(child.read_text()), time.monotonic() + 30.0
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_profile_ends_with_its_parent(tmp_path: Path, number: int) -> None:
    path, child = tmp_path / "train.py", tmp_path / "child"
    path.write_text(f"{BUILD}open({str(child)!r}, 'w').write(str(os.getpid()))\n    while True: pass")
    code = "import sys; from longshore.planner.profile import profiling as p; "
    code += "p.profile_model(sys.argv[1], p.ProfilingLimits())"
    with processes.start([sys.executable, "-c", code, str(path)], stderr=processes.DEVNULL) as asking:
        while not (child.exists() and child.read_text()):
            assert asking.poll() is None
            time.sleep(0.05)
        asking.send_signal(number)
        asking.wait()
    pid, until = int(child.read_text()), time.monotonic() + 30.0
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.full
def test_what_a_file_starts_does_not_spin_for_ever(tmp_path: Path) -> None:
    path, reported = tmp_path / "train.py", tmp_path / "reported"
    text = f"{BUILD}import resource, subprocess\n    of = 'import resource; print(resource.getrlimit(0)[0])'\n"
    text += f"    subprocess.run([sys.executable, '-c', of], stdout=open({str(reported)!r}, 'w'))\n"
    path.write_text(f"{text}    return nn.Linear(8, 8), torch.zeros(4, 8)")
    profile_model(f"{path}:build", LIMITS)
    assert 0 < int(reported.read_text()) <= LIMITS.time_s * (os.cpu_count() or 1) + 1


@pytest.mark.full
def test_what_a_file_prints_is_no_part_of_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    shout = "import os, sys\nprint('{}' * 100_000)\nos.write(1, b'{}' * 1000)\nsys.stderr.write('x' * 10)\n"
    path.write_text(shout + MODEL)
    found = profile_model(f"{path}:build", LIMITS)
    assert found.parameters == 2 * (64 + 8)
    assert found.forward_flops == 2 * 2 * 64


LIMITED = """\
import resource, sys
resource.setrlimit(int(sys.argv[2]), (int(sys.argv[3]),) * 2)
from longshore.planner.profile.profiling import ProfilingLimits, profile_model
print(profile_model(sys.argv[1], ProfilingLimits(time_s=90.0, memory_bytes=8.0 * 2**30)).rung)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "hard"),
    [
        (resource.RLIMIT_DATA, 4 << 30),
        (resource.RLIMIT_CPU, 60),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ],
)
def test_a_model_is_profiled_under_the_limits_of_a_login_node(tmp_path: Path, kind: int, hard: int) -> None:
    (tmp_path / "train.py").write_text(MODEL)
    line = [sys.executable, "-c", LIMITED, f"{tmp_path / 'train.py'}:build", str(kind), str(hard)]
    done = processes.run(line, capture_output=True, check=True)
    assert done.stdout == "without weights (meta device)\n"


def test_a_file_alone_has_a_function_build_and_finds_what_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(MODEL)
    path = tmp_path / "train.py"
    path.write_text("from beside import build\n")
    found = profile_model(str(path), LIMITS)
    assert (found.name, found.rung) == ("train.py:build", "without weights (meta device)")


@pytest.mark.full
def test_a_formula_of_the_user_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        MODEL
        + """
from torch.utils.flop_counter import register_flop_formula
@register_flop_formula(torch.ops.aten.relu)
def flops(shape, out_shape=None, **kwargs):
    return 1000
"""
    )
    found = profile_model(f"{path}:build", LIMITS)
    assert found.rung == "without weights (meta device), 1 FLOP formulas of yours"
    assert found.forward_flops == 2 * 2 * 64 + 1000 / 4


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    for target in (tmp_path / "none.py", tmp_path, f"{tmp_path}/none.py:build", f"{tmp_path}:build", "x" * 5000):
        with pytest.raises(InputError, match=r"there is no such file; give FILE\.py:FUNCTION"):
            profile_model(str(target), LIMITS)


@pytest.mark.full
def test_the_process_runs_as_its_user(tmp_path: Path) -> None:
    path, who = tmp_path / "train.py", tmp_path / "who"
    path.write_text(f"import os\nopen({str(who)!r}, 'w').write(f'{{os.getuid()}} {{os.getpid()}}')\n{MODEL}")
    profile_model(f"{path}:build", LIMITS)
    user, process = map(int, who.read_text().split())
    assert user == os.getuid()
    assert process != os.getpid()
