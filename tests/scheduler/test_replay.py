"""Decisions taken out of a store: replayed with the same policy, each is the same."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.cluster.files.errors import InputError
from longshore.scheduler.commands.store import decisions
from longshore.scheduler.commands.store import replay as replay_command
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.placement.replay import Compared, comparison_line, export_decisions, replay
from longshore.scheduler.store.database import open_store
from tests.plain_run import busy_case
from tests.policies_under_test import untrained_candidates
from tests.scheduler.twin_run import learning, twin_of


def recorded(folder: Path, policy: Policy, *, ring: bool) -> Path:
    """Play a busy case with faults through a real scheduler, and return the file of its decisions."""
    store = open_store(f"sqlite:///{folder / 'store.db'}")
    twin_of(busy_case(ring=ring), store, Placer(policy)).run()
    file = folder / "decisions.jsonl"
    file.write_text("".join(line + "\n" for line in export_decisions(store)), encoding="utf-8")
    store.close()
    return file


@pytest.mark.parametrize("policy", [HEURISTICS["patient"], untrained_candidates(waiting=True)], ids=lambda it: it.name)
@pytest.mark.parametrize("ring", [False, True])
def test_the_same_policy_decides_the_same_again(policy: Policy, ring: bool, tmp_path: Path) -> None:  # noqa: FBT001
    file = recorded(tmp_path, policy, ring=ring)

    compared = list(replay(file, policy))

    assert len(compared) == len(file.read_text().splitlines()) >= 10
    assert all(it.agrees and it.expected == it.other_expected for it in compared)


def test_what_was_learned_of_fault_rates_is_known_again(tmp_path: Path) -> None:
    file = learning(tmp_path)

    compared = list(replay(file, HEURISTICS["patient"]))

    openings = [past for line in file.read_text().splitlines() if "beliefs" in (past := json.loads(line)["past"])]
    assert len(openings) > 2
    assert max(openings[-1]["beliefs"][4]) > 0.0
    assert len(compared) >= 60
    assert all(it.agrees and it.expected == it.other_expected for it in compared)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda beliefs: beliefs[1].pop(),
        lambda beliefs: beliefs[0].append(1e-6),
        lambda beliefs: beliefs[1].__setitem__(0, -1e-6),
        lambda beliefs: beliefs[1].__setitem__(0, 1e400),
        lambda beliefs: beliefs[2].__setitem__(0, 2),
        lambda beliefs: beliefs.pop(),
    ],
)
def test_rates_that_no_one_can_have_learned_are_refused(spoil: Callable[[Any], object], tmp_path: Path) -> None:
    file = learning(tmp_path)
    lines = file.read_text().splitlines()
    first = json.loads(lines[0])
    spoil(first["past"]["beliefs"])
    file.write_text("\n".join([json.dumps(first), *lines[1:]]), encoding="utf-8")

    with pytest.raises(InputError, match=r"decisions\.jsonl:1"):
        list(replay(file, HEURISTICS["patient"]))


def test_another_policy_is_compared_decision_by_decision_with_what_is_expected_of_both(tmp_path: Path) -> None:
    file = recorded(tmp_path, HEURISTICS["patient"], ring=True)

    compared = list(replay(file, HEURISTICS["spread"]))

    differing = [it for it in compared if not it.agrees]
    assert 0 < len(differing) < len(compared)
    pair = next(it for it in differing if it.gpus and it.other_gpus)
    assert pair.expected is not None
    assert pair.other_expected is not None
    assert pair.expected.slowdown != pair.other_expected.slowdown
    assert json.loads(comparison_line(pair))["other_gpus"] == list(pair.other_gpus)


def test_what_is_expected_of_a_start_is_what_the_scheduler_reckoned_with(tmp_path: Path) -> None:
    file = recorded(tmp_path, HEURISTICS["eft"], ring=True)
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    with store.read() as tx:
        slowdowns = Counter(row[0] for row in tx.exec_driver_sql("SELECT slowdown FROM attempt"))
    store.close()

    starts = [it for it in replay(file, HEURISTICS["eft"]) if it.gpus]

    assert Counter(it.expected.slowdown for it in starts if it.expected is not None) == slowdowns


def test_decisions_behind_a_gap_are_left_out(tmp_path: Path) -> None:
    file = recorded(tmp_path, HEURISTICS["pack"], ring=False)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4] + lines[5:]))

    assert len(list(replay(file, HEURISTICS["pack"]))) == 4


def foreign(line: str) -> str:
    """Return the first decision of a journal under an order regime that is not installed."""
    found = json.loads(line)
    found["past"]["site"]["rules"]["order"] = "by-colour"
    return json.dumps(found) + "\n"


@pytest.mark.parametrize("at", [0, 4, -1])
def test_decisions_under_an_order_that_is_not_installed_are_skipped_up_to_the_next_journal(
    at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recorded(tmp_path, HEURISTICS["pack"], ring=False)
    lines = file.read_text().splitlines(keepends=True)
    older = [*lines[:at], foreign(lines[0]), *lines[at:][1:]]
    file.write_text("".join([*older, *lines]))
    met, left_out = at % len(lines), len(lines) - at % len(lines)

    compared, why = list(replay(file, HEURISTICS["pack"], counted := Counter[str]())), next(iter(counted))
    replay_command(file, "pack")

    assert len(compared) == met + len(lines)
    assert all(it.agrees for it in compared)
    assert counted == {why: left_out}
    summary = capsys.readouterr().out.splitlines()[-1]
    assert str(left_out) in summary
    assert "'by-colour'" in summary


def test_the_command_says_why_decisions_before_a_beginning_and_behind_a_gap_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recorded(tmp_path, HEURISTICS["pack"], ring=False)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[-2:], *lines[:4], *lines[5:]]))

    replay_command(file, "pack")

    *_, summary, reported = capsys.readouterr().out.splitlines()
    assert summary == "4 of 4 decisions are the same (100.0 %)"
    before, gap = reported.partition(": ")[2].split("; ")
    assert before.startswith("2, as")
    assert gap.startswith(f"{len(lines) - 5}, as")


class Broken:
    name, about, waits = "broken", "raises", False
    place = run = property(lambda self: 1 // 0)


def test_a_policy_that_raises_is_reported_at_each_decision_and_changes_nothing(tmp_path: Path) -> None:
    file = recorded(tmp_path, HEURISTICS["pack"], ring=False)

    compared: list[Compared] = list(replay(file, Broken()))

    assert {it.error for it in compared} == {"ZeroDivisionError: integer division or modulo by zero"}
    assert [it.gpus for it in compared] == [it.gpus for it in replay(file, HEURISTICS["pack"])]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('["begin",', '[["begin"],'),
        ('["carry_out","', '["carry_out","x'),
        ('"dtype":"<i4"', '"dtype":"O"'),
        ('"past":{', '"past":[{'),
        ('["submit",["', '["submit",[["'),
    ],
)
def test_a_damaged_file_is_reported_by_its_line(was: str, now: str, tmp_path: Path) -> None:
    file = recorded(tmp_path, HEURISTICS["pack"], ring=False)
    text = file.read_text()
    assert was in text
    file.write_text(text.replace(was, now))

    with pytest.raises(InputError, match=r"decisions\.jsonl:\d+"):
        list(replay(file, HEURISTICS["pack"]))


def test_the_command_line_writes_decisions_and_reports_where_another_policy_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'longshore.db'}")
    twin_of(busy_case(ring=True), store, Placer(HEURISTICS["patient"])).run()
    store.close()
    file, out = tmp_path / "decisions.jsonl", tmp_path / "compared.jsonl"

    decisions(file, tmp_path)
    replay_command(file, "patient")
    replay_command(file, "spread", out)
    reported = capsys.readouterr().out

    count = len(file.read_text().splitlines())
    compared = [json.loads(line) for line in out.read_text().splitlines()]
    same = sum(it["agrees"] for it in compared)
    assert f"{count} decisions in {file}" in reported
    assert f"{count} of {count} decisions are the same (100.0 %)" in reported
    assert f"{same} of {count} decisions are the same" in reported
    assert "slowdown" in reported


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no store at .*longshore\.db; name the scheduler by --folder"):
        decisions(tmp_path / "decisions.jsonl", tmp_path)
