"""What every fault model must do, whoever wrote it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from longshore.cluster.faults.models import (
    EXPONENTIAL,
    Exponential,
    FaultConfiguration,
    FaultDraw,
    FaultModel,
    exponential,
    fault_model,
)
from longshore.cluster.files.errors import InputError, PluginError
from longshore.cluster.files.plugins import registered
from longshore.cluster.model.topology import Cluster
from longshore.cluster.presets.cluster_file import draw_faults, read_cluster
from longshore.testing import check_fault_model
from tests.command_line import Command
from tests.packages import install

CLUSTER_FILE = """
node_types:
  v100: {gpus: 2, peak_flops: 125e12, memory_bytes: 32e9, hazard_per_s: 1e-9}
racks:
  - {nodes: [{type: v100, count: 2}]}
faults: {model: shaky, rate_per_s: 2e-6}
"""
THEIRS = """
import numpy as np
from longshore.cluster.faults.models import FaultConfiguration, FaultModel, fault_process, source_rates

class Shaky(FaultConfiguration):
    rate_per_s: float

def shaky(cluster, hazard_per_s, configuration, seed):
    rates = np.full_like(hazard_per_s, configuration.rate_per_s)
    return source_rates(cluster, rates), fault_process(configuration, 1.0)

MODEL = FaultModel(Shaky, shaky)
"""


@pytest.mark.parametrize("name", registered("faults"))
def test_a_fault_model_is_a_pure_function_with_a_rate_for_each_source(name: str) -> None:
    check_fault_model(fault_model(name))


def spoilt(change: Callable[[FaultDraw], Any], configuration: type[FaultConfiguration] = Exponential) -> FaultModel:
    """Return exponential faults with something wrong about them."""

    def build(cluster: Cluster, hazard_per_s: NDArray[np.float64], given: Exponential, seed: int) -> Any:
        return change(exponential(cluster, hazard_per_s, given, seed))

    return FaultModel(configuration, build)


class Lenient(FaultConfiguration, extra="ignore"):
    pass


class Demanding(FaultConfiguration):
    rate_per_s: float


def clears(cluster: Cluster, hazard_per_s: NDArray[np.float64], configuration: Exponential, seed: int) -> FaultDraw:
    drawn = exponential(cluster, hazard_per_s, configuration, seed)
    hazard_per_s[:] = 0.0
    return drawn


COUNT = iter(range(10**6))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (None, "it is NoneType, not a FaultModel"),
        (spoilt(lambda draw: draw, Lenient), "Lenient passes a misspelt key over"),
        (spoilt(lambda draw: draw, Demanding), r"Demanding refuses the parameters: (.|\n)*rate_per_s"),
        (FaultModel(Exponential, clears), "it changes the hazards that it is given"),
        (spoilt(lambda draw: draw[0]), r"`build` does not give \(rates, process\)"),
        (spoilt(lambda draw: (draw[0].tolist(), draw[1])), "the rates are list, not an array"),
        (spoilt(lambda draw: (draw[0], None)), "the process is NoneType, not a FaultProcess"),
        (spoilt(lambda draw: (draw[0].astype(np.float32), draw[1])), "the rates are float32, not float64"),
        (spoilt(lambda draw: (draw[0][:-1], draw[1])), r"the rates have shape \(2,\), not"),
        (spoilt(lambda draw: (-draw[0], draw[1])), "a rate is below 0 or not finite"),
        (spoilt(lambda draw: (draw[0], draw[1]._replace(shape=0.0))), "the process is not sound: shape"),
        (spoilt(lambda draw: (draw[0] * next(COUNT), draw[1])), "the same seed gives other faults"),
    ],
)
def test_the_check_says_what_is_broken(broken: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_fault_model(broken)


def test_a_model_that_needs_parameters_is_checked_with_them() -> None:
    check_fault_model(FaultModel(Demanding, EXPONENTIAL.build), {"rate_per_s": 1.0})


@pytest.fixture
def cluster_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    points = {"shaky": "shaky:MODEL", "none-at-all": "shaky:shaky"}
    install(tmp_path / "theirs", monkeypatch, "faults", points, shaky=THEIRS)
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER_FILE)
    return path


def test_a_model_of_another_package_is_named_in_a_cluster_file(cluster_file: Path) -> None:
    setup = read_cluster(cluster_file)
    assert draw_faults(setup, 0)[0].tolist() == [2e-6] * 4 + [0.0] * 3

    cluster_file.write_text(CLUSTER_FILE.replace("rate_per_s", "rate_pre_s"))
    with pytest.raises(InputError, match=r"faults\.rate_pre_s: unknown key; did you mean 'rate_per_s'"):
        read_cluster(cluster_file)
    cluster_file.write_text(CLUSTER_FILE.replace("shaky", "shakey"))
    with pytest.raises(InputError, match="'shakey' is not a fault model; did you mean 'shaky'"):
        read_cluster(cluster_file)


def test_jobs_are_simulated_under_a_model_of_another_package(
    cluster_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Command(monkeypatch, capsys)("simulate", "--cluster", cluster_file, "--jobs", "40")
    assert done.status == 0, done.err
    restarts = re.search(r"restarts +(\d+)", done.out)
    assert restarts is not None
    assert int(restarts[1]) > 0


def test_what_is_no_fault_model_is_refused_with_where_it_comes_from(cluster_file: Path) -> None:
    cluster_file.write_text(CLUSTER_FILE.replace("shaky", "none-at-all"))
    with pytest.raises(PluginError, match=r"fault model 'none-at-all' \(shaky:shaky\) is function, not a FaultModel"):
        read_cluster(cluster_file)
