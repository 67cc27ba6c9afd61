"""What of a round's results comes into quarantine, whatever a check of strangers may say."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.placement import Share
from longshore.preflight.check import CheckOutcome, CheckResult, RoundReport
from longshore.scheduler.control.node_checks import (
    MAX_STORED_RESULTS,
    MAX_TEXT_CHARACTERS,
    finding_lines,
    quarantine_findings,
    results_for_event,
)
from longshore.scheduler.health.quarantining import QuarantineOutcome, clear_quarantine, quarantine
from longshore.scheduler.model.gpu_index import WHOLE_NODE, Clears, HardwarePlace
from longshore.scheduler.rules.quarantine import Fleet
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.nodes import open_quarantines

PLACEMENT = (Share("a", (0, 2)), Share("b", (1,)))
FLEET = Fleet({"a": 4, "b": 4}, {"a": "slots", "b": "slots"})


def report(*results: CheckResult) -> RoundReport:
    return RoundReport(("a", "b"), results)


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ("", HardwarePlace("a")), ("gpu 0", HardwarePlace("a", 0)), ("gpu 2", HardwarePlace("a", 2)), ("gpu 2 link 0",
        HardwarePlace("a")),
        ("gpu 1", HardwarePlace("a")), ("gpu 99", HardwarePlace("a")), ("gpu -1", HardwarePlace("a")), ("gpu 0\n",
        HardwarePlace("a")),
        ("gpu 000000000000", HardwarePlace("a")), ("GPU 0", HardwarePlace("a")), ("mlx5_0/1", HardwarePlace("a")),
        ("gpu ²", HardwarePlace("a")),
    ],
)  # fmt: skip
def test_a_gpu_that_was_chosen_is_blamed_alone_and_for_all_else_its_node(device: str, place: HardwarePlace) -> None:
    (found,) = quarantine_findings(
        report(CheckResult("x", "a", CheckOutcome.FAIL, device, "got", "wanted", "mend")), PLACEMENT, 7.0
    )
    assert (found.place, found.clears, found.at_s, found.action) == (place, Clears.CHECKS, 7.0, "mend")


def test_what_passes_warns_or_is_skipped_comes_into_no_quarantine() -> None:
    well = [CheckResult("x", "a", it) for it in (CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.SKIPPED)]
    assert quarantine_findings(report(*well), PLACEMENT, 7.0) == []
    (found,) = quarantine_findings(
        report(CheckResult("x", "b", CheckOutcome.INCOMPLETE, reason="it broke")), PLACEMENT, 7.0
    )
    assert (found.cause, found.evidence) == ("x did not end", "it broke")


TEXTS = st.text(st.characters(), max_size=2000)


@given(st.lists(st.tuples(st.sampled_from(list(CheckOutcome)), TEXTS, TEXTS, TEXTS, TEXTS), max_size=40))
def test_whatever_a_check_says_is_one_line_that_can_be_stored(
    reported: list[tuple[CheckOutcome, str, str, str, str]],
) -> None:
    results = [
        CheckResult("x", "a", outcome, device, got, wanted, reason=reason)
        for outcome, device, got, wanted, reason in reported
    ]
    found = quarantine_findings(report(*results), PLACEMENT, 7.0)
    assert all(it.place.node == "a" and it.place.gpu in (WHOLE_NODE, 0, 2) for it in found)
    texts = [text for it in found for text in (it.cause, it.evidence, it.action)] + list(
        finding_lines(report(*results))
    )
    texts += [text for it in results_for_event(results) for text in it.values() if isinstance(text, str)]
    assert all(len(text) <= MAX_TEXT_CHARACTERS and (text == "" or text.isprintable()) for text in texts)
    assert len(results_for_event(results)) <= MAX_STORED_RESULTS


def test_what_was_found_before_a_place_was_cleared_does_nothing_any_more(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    (found,) = quarantine_findings(report(CheckResult("x", "a", CheckOutcome.FAIL, "gpu 0", "smoke")), PLACEMENT, 100.0)
    assert store.write(lambda tx: quarantine(tx, FLEET, found, 100.0, writer="t")) is QuarantineOutcome.SET
    store.write(lambda tx: clear_quarantine(tx, HardwarePlace("a", 0), "ann", "mended", 200.0, writer="t"))
    assert store.write(lambda tx: quarantine(tx, FLEET, found, 300.0, writer="t")) is QuarantineOutcome.OLD
    with store.read() as tx:
        assert open_quarantines(tx) == []
    store.close()
