"""A plug-in's network is one file and one registration: it is trained, loaded, compared, and served by a scheduler."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.registry import find_policy
from longshore.cluster.files.errors import CheckpointError
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.database import open_store
from longshore.testing.twin import starts_of
from longshore.training.problems import PRESETS, Hyperparameters, ProblemRequest, Problems, Sizes
from tests.command_line import Command
from tests.plain_run import busy_case
from tests.scheduler.twin_run import layout_of, simulated, twin_of
from tests.support import processes
from tests.their_network import install_network, with_actions

SMALL = Hyperparameters(rows=16, steps=16, minibatch=128, epochs=1)
PATIENCE_S = 120.0  # far more than anything here takes
NODES, LISTS = ("node", "gpu"), ("candidate",)


@pytest.fixture(autouse=True)
def few_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PRESETS["hetero64"]

    def build(given: ProblemRequest) -> Problems:
        return own.build(given._replace(sizes=Sizes(64, 16)))

    monkeypatch.setitem(PRESETS, "hetero64", replace(own, build=build, ppo=SMALL))


@pytest.mark.full
@pytest.mark.parametrize(
    ("actions", "options"), [(NODES, ()), (NODES, ("--action", "gpu")), (LISTS, ("--action", "candidate", "--waiting"))]
)
def test_a_plug_ins_network_is_trained_loaded_compared_and_served(
    actions: tuple[str, ...], options: tuple[str, ...], longshore: Command, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    install_network(tmp_path / "package", monkeypatch, with_actions(actions))
    line = ("--preset", "hetero64", "--network", "theirs", "--steps", "512", "--threads", "1", *options)
    done = longshore("train", *line, "--logdir", tmp_path)
    assert done.status == 0, done.err
    (checkpoint,) = tmp_path.glob("hetero64-ppo-*theirs-*0/best.zip")

    policy = load_policy(checkpoint)
    assert policy.schema.network == "theirs"
    assert policy.about.startswith("learned: ppo, theirs network")
    done = longshore("evaluate", "--policy", checkpoint, "--workloads", "2", "--no-heuristics", *options[2:])
    assert done.status == 0, done.err
    assert "best" in done.out

    case, store = busy_case(ring=True), open_store(f"sqlite:///{tmp_path / 'store.db'}")
    twin = twin_of(case, store, Placer(HEURISTICS["pack"], str(checkpoint), PATIENCE_S))
    assert twin.scheduler.tick()
    twin.parts.placer.wait_until_ready(PATIENCE_S)
    twin.run()
    twin.scheduler.close()
    starts = starts_of(store, layout_of(case))
    store.close()
    assert not twin.parts.placer.misses
    assert starts == simulated(case, find_policy(str(checkpoint)))


def test_without_the_package_the_error_of_a_checkpoint_names_what_to_install(
    longshore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as installed:
        install_network(tmp_path / "package", installed, with_actions(NODES))
        longshore("train", "--network", "theirs", "--steps", "256", "--threads", "1", "--logdir", tmp_path)
    (checkpoint,) = tmp_path.glob("*/best.zip")
    expected = (
        "there is no network 'theirs', only candidates, layers, mlp, set; install the package that registers it under"
    )
    with pytest.raises(CheckpointError, match=f"{checkpoint}: {expected} longshore.networks"):
        load_policy(checkpoint)
    done = longshore("evaluate", "--policy", checkpoint)
    assert done.status == 2
    assert done.err.splitlines()[-1] == f"longshore: {checkpoint}: {expected} longshore.networks"


@pytest.mark.parametrize(
    ("actions", "options", "expected"),
    [
        (NODES, ("--action", "candidate"), "--network: the network 'theirs' has no candidate actions; add --action "),
        (LISTS, (), "--network: the network 'theirs' has no node actions; add --action candidate"),
        (LISTS, ("--algo", "group"), "--network: group teaches the network `candidates`"),
        (NODES, ("--algo", "distil", "--action", "node"), "--action: distil learns to choose among candidates"),
    ],
)
def test_what_a_network_cannot_do_is_refused_before_it_is_trained(
    actions: tuple[str, ...], options: tuple[str, ...], expected: str, longshore: Command, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    install_network(tmp_path / "package", monkeypatch, with_actions(actions))
    done = longshore("train", "--network", "theirs", *options, "--logdir", tmp_path / "runs")
    assert done.status == 2
    assert expected in done.err
    assert not (tmp_path / "runs").exists()


def test_the_help_names_every_network_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_network(tmp_path / "package", monkeypatch, with_actions(NODES))
    line = [sys.executable, "-m", "longshore", "train", "--help"]
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = processes.run(line, capture_output=True, check=True, env=environment)
    assert "candidates, layers, mlp, set or theirs" in done.stdout
