"""Rings on nodes in network namespaces, whose links are cut: which members are declared gone, and when."""

import os
import pickle
import re
import sys
from pathlib import Path

import pytest

from benchmarks.namespaces import NAMESPACES, why_not
from longshore.ring import wire
from tests.support import processes
from tests.support.processes import PYTHON_PATH, ROOT

from .apart import LOST, SEATS, STEPS
from .trial import Outcome, run_ring

# Most of each is waiting: for silence to be noticed, and for leases to run out.
pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(100)]


@pytest.fixture(scope="module")
def twin(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A ring in which nothing goes wrong, for the same number of steps."""
    return run_ring(tmp_path_factory.mktemp("twin"), warm, steps=STEPS, pause_s=0.0)


def play(case: str, folder: Path) -> tuple[Outcome, str]:
    """Return the outcome of a case, and the coordinator's log."""
    if why := why_not():
        pytest.skip(why)
    command = [*NAMESPACES, sys.executable, "-m", "tests.ring.apart", case, str(folder)]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    done = processes.run(command, cwd=ROOT, env=environment, capture_output=True, timeout_s=420, check=False)
    assert done.returncode == 0, done.stderr
    found: Outcome = pickle.loads((folder / "outcome.pickle").read_bytes())
    return found, done.stderr


def assert_replaced(found: Outcome, twin: Outcome) -> None:
    """The member has lost its seat, the spare has it, and no step and no bit is another."""
    assert found.end.outcome == "done"
    assert found.steps() == list(range(STEPS))
    assert found.digests() == twin.digests()
    assert set(found.declared) == {LOST}
    assert found.report["holders"] == [SEATS if it == LOST else it for it in range(SEATS)]


def assert_never_two_owners(found: Outcome) -> None:
    """By the clock of the machine that all nodes share."""
    steps = [line for line in found.of("step") if line["content"][2] == LOST]
    last_s = max(line["at"] for line in steps if line["member"] == LOST)
    assert last_s < min(line["at"] for line in steps if line["member"] == SEATS)
    assert {line["content"][1] for line in steps if line["member"] == LOST} == {1}


@pytest.mark.parametrize("case", ["unplugged", "cut off from the manager"])
def test_a_node_that_is_silent_is_declared_gone_and_what_runs_there_ends_itself(
    case: str, twin: Outcome, tmp_path: Path
) -> None:
    found, _ = play(case, tmp_path)
    assert_replaced(found, twin)
    assert_never_two_owners(found)
    (silent_s,) = map(int, re.findall(r"\d+", found.declared[LOST]))
    assert 10 <= silent_s <= 12
    assert found.exits[LOST] == wire.GONE_STATUS


def test_of_two_nodes_that_cannot_reach_each_other_one_is_replaced(twin: Outcome, tmp_path: Path) -> None:
    """Nothing is closed and nothing is refused; both reach all others, the coordinator too."""
    found, _ = play("cut pair", tmp_path)
    assert_replaced(found, twin)
    assert found.declared[LOST] == f"exchanges between members [1, {LOST}] failed 3 times"


def test_a_coordinator_that_is_cut_off_for_five_seconds_declares_no_member_gone(twin: Outcome, tmp_path: Path) -> None:
    found, _ = play("manager cut for 5 s", tmp_path)
    assert (found.end.outcome, found.declared, found.generation()) == ("done", {}, 1)
    assert found.digests() == twin.digests()


def test_a_coordinator_that_is_cut_off_for_half_a_minute_raises_an_alarm_and_the_ring_goes_on_from_its_checkpoint(
    warm: Path, twin: Outcome, tmp_path: Path
) -> None:
    """Members without a lease end themselves; none of them is declared gone before they have all done so."""
    found, log = play("manager cut for 30 s", tmp_path)
    assert found.end.outcome == "lost"
    assert log.count("alarm: ") == 1
    assert set(found.exits.values()) == {wire.GONE_STATUS}
    assert all(int(re.findall(r"\d+", reason)[0]) >= 40 for reason in found.declared.values())
    again = run_ring(tmp_path / "again", warm, steps=STEPS, pause_s=0.0, checkpoints=tmp_path / "checkpoints")
    assert again.end.outcome == "done"
    assert again.steps()[0] == found.steps()[-1] // 10 * 10
    assert again.digests() == twin.digests()
