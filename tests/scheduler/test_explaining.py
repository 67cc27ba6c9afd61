"""`longshore explain`: what was done, and what policy and heuristic would have done, in words."""

from typing import Any

from longshore.scheduler.commands.jobs import decision_lines

HERE, THERE = [{"node": "n0", "gpus": [0, 1]}], [{"node": "n1", "gpus": [2, 3]}]
EARLY, LATE = {"slowdown": 0.9, "end_s": 3600.0}, {"slowdown": 1.2, "end_s": 7200.0}

OUTLOOK = "1.20 x its estimate, to end at 02:00:00"


def decision(**changes: Any) -> dict[str, Any]:
    sure = {"probability": 0.83, "options": 7}
    return {
        "at_s": 0.0, "attempt": 1, "policy": "learned", "version": "1", "mode": "shadow", "heuristic": "patient",
        "decided_by": "patient", "policy_error": "", "placement": HERE, "fallback": HERE, "took_s": 0.002,
        "expected": LATE, "fallback_expected": LATE, "fallback_job": "mine",
        "proposal": {"job": "mine", "placement": THERE, "expected": EARLY, "agrees": False, **sure},
    } | changes  # fmt: skip


def test_a_policy_on_trial_is_shown_beside_the_heuristic_with_what_each_expects() -> None:
    assert decision_lines(decision(), "mine") == [
        "00:00:00  n0:0,1, 1.20 x its estimate, to end at 02:00:00",
        "          chosen by patient in 2.0 ms",
        "          the policy learned (shadow mode, version 1): n1:2,3, 0.90 x its estimate, to end at 01:00:00, "
        "83% sure among 7 moves",
        "          the heuristic patient: what was done",
    ]


def test_how_sure_a_policy_is_stands_with_its_own_choice_only() -> None:
    followed = decision(mode="active", decided_by="learned", placement=THERE, expected=EARLY)
    _, _, policy, heuristic = decision_lines(followed, "mine")
    assert policy.endswith(": what was done, 83% sure among 7 moves")
    assert heuristic.endswith(": n0:0,1, 1.20 x its estimate, to end at 02:00:00")


def test_a_policy_that_would_start_another_job_names_it() -> None:
    assert "would have started job mine on n1:2,3" in decision_lines(decision(), "other")[2]
    hidden = {**decision()["proposal"], "job": "-", "placement": None, "expected": None}
    assert "another user's job, 83%" in decision_lines(decision(proposal=hidden), "mine")[2]


def test_a_heuristic_that_decided_about_another_job_names_it() -> None:
    followed = decision(mode="active", decided_by="learned", fallback_job="due")
    assert decision_lines(followed, "mine")[3].endswith(
        "patient: job due: n0:0,1, 1.20 x its estimate, to end at 02:00:00"
    )
    waits = {"fallback": None, "fallback_expected": None}
    assert decision_lines(followed | waits, "mine")[3].endswith("patient: job due: wait")
    assert decision_lines(followed | waits | {"fallback_job": "-"}, "mine")[3].endswith("another user's job")
    assert decision_lines(decision(fallback_job="", fallback=THERE), "mine")[3].endswith("patient: n1:2,3, " + OUTLOOK)


def test_a_policy_without_a_usable_answer_shows_why() -> None:
    assert (
        ": no decision within 100 ms"
        in decision_lines(decision(proposal=None, policy_error="no decision within 100 ms"), "mine")[2]
    )


def test_where_the_heuristic_decides_alone_it_is_named_once() -> None:
    lines = decision_lines(decision(proposal=None, policy="patient", mode="active"), "mine")
    assert lines[2:] == ["          policy patient (active mode, version 1)"]
