"""What every trace format and reward must do."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import InputError
from ..cluster.model.workload import Workload
from ..cluster.presets.drawn import hetero64
from ..cluster.traces.read import TraceFormat
from ..envs.batch import REWARDS, AgentView, Batch, cost_so_far_s, ideal_time_s, reward_of

SNIFFED_CHARACTERS = 4096  # characters that `sniff` is given
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "blank": lambda data: b"\n \n",
    "cut off in the middle": lambda data: data[: len(data) // 2].rsplit(b"\n", 1)[0][:-1],
    "no text": lambda data: data[: len(data) // 2] + b"\xff\xfe" + data[len(data) // 2 :],
}


def check_trace_format(trace_format: TraceFormat, sample: Path) -> Workload:
    """Check a trace format by a small file that is in it, and return the jobs of the file.

    `sniff` must know the file, and no other csv. `read` must give jobs that can be run, in the order of their
    submission. It must refuse an empty file, and one that is no text, with an InputError. Of a file that is cut off it
    may read what is whole, or refuse it.

    Args:
        trace_format: Its module, or any object with `sniff` and `read`.
        sample: The file.

    Raises:
        AssertionError: With what is broken.
    """
    data = sample.read_bytes()
    head = data.decode("utf-8-sig")[:SNIFFED_CHARACTERS]
    assert trace_format.sniff(head) is True, "`sniff` does not know a file of its own format"
    assert not trace_format.sniff("no,such,columns\n1,2,3\n"), "`sniff` takes any csv for a file of its format"
    assert not trace_format.sniff(""), "`sniff` takes an empty file"
    workload = trace_format.read(sample)
    _check_jobs(workload)
    _check_windows_text(trace_format, data, workload)
    for damage, spoil in DAMAGES.items():
        _check_damaged(trace_format, spoil(data), damage)
    return workload


def _check_jobs(workload: Workload) -> None:
    assert isinstance(workload, Workload), f"`read` gave {type(workload).__name__}, not a Workload"
    assert workload.gpus.size > 0, "`read` found no job in the sample"
    assert (workload.gpus >= 1).all(), "a job asks for no GPU"
    for name in ("work_s", "estimate_s"):
        values = getattr(workload, name)
        assert (np.isfinite(values) & (values > 0.0)).all(), f"{name} of a job is not finite and above 0"
    assert (np.isfinite(workload.submit_s) & (workload.submit_s >= 0.0)).all(), "submit_s of a job is below 0"
    assert (np.diff(workload.submit_s) >= 0.0).all(), "the jobs are not in the order of their submission"
    assert len(set(workload.ids)) == len(workload.ids), "two jobs have one id"


def _check_windows_text(trace_format: TraceFormat, data: bytes, first: Workload) -> None:
    """Check that the file holds the same jobs with a byte order mark and with other ends of lines."""
    text = data.decode("utf-8-sig").replace("\r\n", "\n")
    again = _read_bytes(trace_format, ("\ufeff" + text.replace("\n", "\r\n")).encode())
    for name in ("gpus", "work_s", "submit_s"):
        same = np.array_equal(getattr(again, name), getattr(first, name))
        assert same, f"{name} differs where lines end as on Windows"


def _check_damaged(trace_format: TraceFormat, data: bytes, damage: str) -> None:
    try:
        workload = _read_bytes(trace_format, data)
    except InputError:
        return
    except Exception as error:
        raise AssertionError(f"a file that is {damage} raises {type(error).__name__}, not an InputError") from error
    assert damage.startswith("cut"), f"a file that is {damage} is read as if it were well"
    _check_jobs(workload)


def _read_bytes(trace_format: TraceFormat, data: bytes) -> Workload:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(data)
        return trace_format.read(path)


EPISODES, JOBS, NODES = 4, 12, 4


def check_reward(name: str) -> None:
    """Check a registered reward by whole episodes of random actions on small scenarios with faults.

    Its rewards must be numbers. Over an episode they must sum to minus its cost at the end, by its definition.
    Before the end a reward that is paid at the end must be 0.

    Args:
        name: Its name.

    Raises:
        AssertionError: With what is broken.
        PluginError: If nothing of that name is registered, or what is registered is no reward.
    """
    reward, problem = reward_of(name), hetero64(EPISODES, 0, nodes=NODES, jobs=JOBS, load=2.0)
    assert reward.about, "it has no description"
    assert "\n" not in reward.about, "`about` has more than one line"
    batch, rng = Batch(problem, AgentView(reward=name), 1), np.random.default_rng(0)
    against_s = np.zeros(EPISODES) if reward.against_s is None else batch.unit_s
    unit_s = ideal_time_s(problem) if reward.against_s is None else against_s
    assert (unit_s > 0.0).all(), "what its cost is compared with, which is its unit, is not above 0"
    for episode in range(EPISODES):
        batch.reset(first=episode)
        rewards = _run_random_episode(batch, rng)
        assert np.isfinite(rewards).all(), "a reward is no number"
        cost_s = cost_so_far_s(REWARDS[name], batch.sim, 0)
        expected = (against_s[episode] - cost_s) / unit_s[episode]
        rounding = 1e-4 * np.abs(rewards).sum()  # each is rounded to float32
        assert abs(rewards.sum() - expected) <= rounding, f"rewards sum to {rewards.sum():g}, and not to {expected:g}"
        assert not reward.at_end or not rewards[:-1].any(), "it pays before the end"


def _run_random_episode(batch: Batch, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the rewards of one episode of random open actions, shape (steps,)."""
    rewards = []
    while True:
        batch.step(np.array([rng.choice(np.flatnonzero(batch.masks[0]))]))
        rewards.append(float(batch.rewards[0]))
        if batch.ended[0]:
            return np.array(rewards)
