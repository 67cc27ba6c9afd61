"""What every fault model, trace format and reward must do."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from ..cluster.faults.models import FaultConfiguration, FaultDraw, FaultModel
from ..cluster.files.errors import InputError
from ..cluster.files.plugins import registered
from ..cluster.model.problem import FaultProcess, fault_sources
from ..cluster.model.topology import Cluster, grid_cluster
from ..cluster.model.workload import Workload
from ..cluster.presets.drawn import hetero64
from ..cluster.state.border import sound_process
from ..cluster.traces.read import TraceFormat
from ..envs.batch import AgentView, Batch, ideal_time_s
from ..envs.stepping import REWARDS, cost_so_far_s, reward_of

CLUSTERS = (grid_cluster(1, 1), grid_cluster(6, 4, nodes_per_rack=4))  # one GPU; two racks, of 4 and of 2 nodes
SEEDS = (0, 5, 2**31 - 1)


def check_fault_model(model: FaultModel, parameters: Mapping[str, object] | None = None) -> None:
    """Check a fault model, on a single GPU and on two uneven racks.

    Its configuration must take the parameters and refuse a key that it does not know. What it builds must be one
    finite rate of 0 or more for each GPU, node and rack, and a sound process. It must be a pure function: the same
    arguments give the same faults, and stay as they are.

    Args:
        model: What is registered.
        parameters: The `faults` section of a cluster file without `model`; by default none.

    Raises:
        AssertionError: With what is broken.
    """
    assert isinstance(model, FaultModel), f"it is {type(model).__name__}, not a FaultModel"
    configuration = _configuration(model, dict(parameters or {}))
    for cluster in CLUSTERS:
        for seed in SEEDS:
            _check_draw(model, cluster, configuration, seed)


def _configuration(model: FaultModel, parameters: dict[str, object]) -> FaultConfiguration:
    kind = model.configuration
    assert issubclass(kind, FaultConfiguration), f"{kind.__name__} is no FaultConfiguration"
    section = {"model": "checked", **parameters}
    assert not _takes(kind, {**section, "no_such_key": 1}), f"{kind.__name__} passes a misspelt key over"
    try:
        return kind.model_validate(section)
    except ValidationError as error:
        raise AssertionError(f"{kind.__name__} refuses the parameters: {error}") from error


def _takes(kind: type[BaseModel], section: Mapping[str, object]) -> bool:
    try:
        kind.model_validate(section)
    except ValidationError:
        return False
    return True


def _check_draw(model: FaultModel, cluster: Cluster, configuration: FaultConfiguration, seed: int) -> None:
    hazard_per_s = np.linspace(1e-6, 3e-6, cluster.gpu_node.size)
    given = hazard_per_s.copy()
    rates, process = _drawn(model.build(cluster, given, configuration, seed))
    assert np.array_equal(given, hazard_per_s), "it changes the hazards that it is given"
    assert rates.dtype == np.float64, f"the rates are {rates.dtype}, not float64"
    assert rates.shape == (fault_sources(cluster),), f"the rates have shape {rates.shape}, not (GPUs + nodes + racks,)"
    assert (np.isfinite(rates) & (rates >= 0.0)).all(), "a rate is below 0 or not finite"
    first = process.outage_first
    assert not first.any() or first.size == rates.size + 1, f"outage_first has {first.size} entries, not sources + 1"
    try:
        sound_process(process)
    except ValueError as error:
        raise AssertionError(f"the process is not sound: {error}") from error
    again, process_again = model.build(cluster, hazard_per_s, configuration, seed)
    assert np.array_equal(rates, again), "the same seed gives other faults"
    drawn, drawn_again = ([np.asarray(part).tolist() for part in one] for one in (process, process_again))
    assert drawn == drawn_again, "the same seed gives another process"


def _drawn(draw: Any) -> FaultDraw:
    is_pair = isinstance(draw, tuple) and len(draw) == 2
    assert is_pair, "`build` does not give (rates, process)"
    rates, process = draw
    assert isinstance(rates, np.ndarray), f"the rates are {type(rates).__name__}, not an array"
    assert isinstance(process, FaultProcess), f"the process is {type(process).__name__}, not a FaultProcess"
    return rates, process


SNIFFED_CHARACTERS = 4096  # characters that `sniff` is given
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "blank": lambda data: b"\n \n",
    "cut off in the middle": lambda data: data[: len(data) // 2].rsplit(b"\n", 1)[0][:-1],
    "no text": lambda data: data[: len(data) // 2] + b"\xff\xfe" + data[len(data) // 2 :],
}


def check_trace_format(trace_format: TraceFormat, sample: Path) -> Workload:
    """Check a trace format by a small file that is in it, and return the jobs of the file.

    `sniff` must know the file, and no other registered format may take it. `read` must give jobs that can be run, in
    the order of their submission. It must refuse an empty file, and one that is no text, with an InputError. Of a file
    that is cut off it may read what is whole, or refuse it.

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
    _check_again(trace_format, data, workload)
    for damage, spoil in DAMAGES.items():
        _check_damaged(trace_format, spoil(data), damage)
    return workload


def others_that_take(sample: Path, name: str) -> list[str]:
    """Return the registered formats but one that take a file for theirs: `longshore` could then not find its format."""
    from ..cluster.traces.read import load_format

    head = sample.read_bytes().decode("utf-8-sig")[:SNIFFED_CHARACTERS]
    return [other for other in registered("traces") if other != name and load_format(other).sniff(head)]


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


def _check_again(trace_format: TraceFormat, data: bytes, first: Workload) -> None:
    """The same file with a byte order mark and other ends of lines holds the same jobs."""
    text = data.decode("utf-8-sig").replace("\r\n", "\n")
    again = _read(trace_format, ("\ufeff" + text.replace("\n", "\r\n")).encode())
    for name in ("gpus", "work_s", "submit_s"):
        same = np.array_equal(getattr(again, name), getattr(first, name))
        assert same, f"{name} differs where lines end as on Windows"


def _check_damaged(trace_format: TraceFormat, data: bytes, damage: str) -> None:
    try:
        workload = _read(trace_format, data)
    except InputError:
        return
    except Exception as error:
        raise AssertionError(f"a file that is {damage} raises {type(error).__name__}, not an InputError") from error
    assert damage.startswith("cut"), f"a file that is {damage} is read as if it were well"
    _check_jobs(workload)


def _read(trace_format: TraceFormat, data: bytes) -> Workload:
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
        rewards = _rewards_of(batch, rng)
        assert np.isfinite(rewards).all(), "a reward is no number"
        cost_s = cost_so_far_s(REWARDS[name], batch.sim, 0)
        expected = (against_s[episode] - cost_s) / unit_s[episode]
        rounding = 1e-4 * np.abs(rewards).sum()  # each is rounded to float32
        assert abs(rewards.sum() - expected) <= rounding, f"rewards sum to {rewards.sum():g}, and not to {expected:g}"
        assert not reward.at_end or not rewards[:-1].any(), "it pays before the end"


def _rewards_of(batch: Batch, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the rewards of one episode of random open actions, shape (steps,)."""
    rewards = []
    while True:
        batch.step(np.array([rng.choice(np.flatnonzero(batch.masks[0]))]))
        rewards.append(float(batch.rewards[0]))
        if batch.ended[0]:
            return np.array(rewards)
