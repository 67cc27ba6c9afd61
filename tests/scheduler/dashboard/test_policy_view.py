import pytest

from longshore.scheduler.dashboard.views import policy_view
from longshore.scheduler.policy_host.process import Miss
from longshore.scheduler.store.attempts import DecisionRow


def decision(
    took_s: float = 0.001, obeyed: str = "learned", kind: str = "", missed: str = "", *, agrees: bool | None = None
) -> DecisionRow:
    received = {"decided_by": obeyed, "fallback": "patient", "kind": kind, "policy_error": missed, "agrees": agrees}
    return DecisionRow(1, "x", None, 5.0, "learned", "1", "active", None, None, received, took_s, "")


def test_percentiles_are_decisions_that_were_made() -> None:
    view = policy_view([decision(0.001 * number) for number in range(1, 201)], 0.1)

    assert dict(view.took_s) == pytest.approx({"median": 0.1, "95 %": 0.19, "99 %": 0.198, "longest": 0.2})


def test_every_decision_stands_in_the_histogram_where_its_time_is() -> None:
    took = [0.000001, 0.0012, 0.0013, 0.05, 90.0]

    view = policy_view([decision(took_s) for took_s in took], 0.1)

    assert sum(column.decisions for column in view.columns) == len(took)
    assert max(view.columns, key=lambda column: column.height).decisions == 2
    assert all(column.from_s <= 0.0012 and column.to_s >= 0.0013 for column in view.columns if column.decisions == 2)
    assert view.columns[0].x == 0.0
    assert view.columns[-1].x + view.columns[-1].width == pytest.approx(100.0)


def test_the_deadline_stands_on_the_same_axis() -> None:
    view = policy_view([], 0.1)

    assert (view.deadline_x, "100 ms") in view.marks


def test_misses_are_counted_by_kind_with_the_last_of_each() -> None:
    late, ended = "no decision within 100 ms", "the policy's process has ended"
    rows = [decision(obeyed="patient", kind="dead", missed=ended)]
    rows += [decision(obeyed="patient", kind="late", missed=late) for _ in range(2)]

    view = policy_view(rows, 0.1)

    assert view.misses == [(Miss.LATE, 2, 5.0, late), (Miss.DEAD, 1, 5.0, ended)]
    assert view.by == [("patient", 3)]


def test_agreement_counts_only_decisions_at_which_the_policy_was_heard() -> None:
    view = policy_view([decision(agrees=True), decision(agrees=False), decision(agrees=None)], 0.1)

    assert (view.agreed, view.answered) == (1, 2)


def test_a_miss_of_a_kind_of_another_version_is_counted_under_its_name() -> None:
    view = policy_view([decision(kind="melted", missed="too hot"), decision(kind=Miss.LATE, missed="late")], 0.1)

    assert sorted(view.misses) == sorted([("melted", 1, 5.0, "too hot"), (Miss.LATE, 1, 5.0, "late")])
