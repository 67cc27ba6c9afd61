"""Quarantine in the store: what findings put there, and what ends it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.scheduler.health.quarantining import (
    QuarantineOutcome,
    clear_quarantine,
    quarantine,
    record_failed_checks,
)
from longshore.scheduler.model.gpu_index import (
    Clears,
    HardwarePlace,
    QuarantineEntry,
    QuarantineFinding,
    Scope,
)
from longshore.scheduler.rules.quarantine import (
    BACK_OFF_S,
    BY_CHECKS,
    BY_HAND,
    QUIET_S,
    Fleet,
    closed_gpus,
    is_check_due,
)
from longshore.scheduler.store.database import Store
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.nodes import QUARANTINE, REFUSED, open_quarantines, quarantined_gpus

DAY_S, NOW_S = 86400.0, 1.7e9
NODES = 40
FLEET = Fleet({f"n{node}": 4 for node in range(NODES)}, dict.fromkeys((f"n{node}" for node in range(NODES)), "a100"))
GPU = HardwarePlace("n0", 1)


def finding(
    place: HardwarePlace = GPU, at_s: float = NOW_S, cause: str = "xid 79", clears: Clears = Clears.CHECKS
) -> QuarantineFinding:
    return QuarantineFinding(place, "xid.recent", cause, "NVRM: Xid 79", "restart the machine", clears, at_s, "boot-1")


def find(store: Store, found: QuarantineFinding, now_s: float | None = None, fleet: Fleet = FLEET) -> QuarantineOutcome:
    at_s = found.at_s if now_s is None else now_s
    return store.write(lambda tx: quarantine(tx, fleet, found, at_s, writer="test"))


def end(store: Store, place: HardwarePlace, at_s: float, by: str = BY_CHECKS) -> int:
    return store.write(lambda tx: clear_quarantine(tx, place, by, "level 3 passed", at_s, writer="test"))


def standing(store: Store) -> list[QuarantineEntry]:
    with store.read() as tx:
        return open_quarantines(tx)


def closed(store: Store) -> set[tuple[str, int]]:
    with store.read() as tx:
        return set(quarantined_gpus(tx, FLEET.sizes))


def alarms(store: Store) -> int:
    with store.read() as tx:
        return sum((it.kind, it.now) == (QUARANTINE, REFUSED) for it in events_after(tx, 0, 1 << 40))


def test_a_finding_closes_its_gpu_until_it_is_cleared_and_says_all_that_is_known(store: Store) -> None:
    assert find(store, finding()) is QuarantineOutcome.SET
    (entry,) = standing(store)
    assert (entry.place, entry.place.scope, entry.cause, entry.check) == (GPU, Scope.DEVICE, "xid 79", "xid.recent")
    assert (entry.evidence, entry.action, entry.boot_id) == ("NVRM: Xid 79", "restart the machine", "boot-1")
    assert (entry.tries, entry.not_before_s - NOW_S) == (1, BACK_OFF_S[0])
    assert closed(store) == {("n0", 1)}
    assert end(store, GPU, NOW_S + DAY_S) == 1
    assert (standing(store), closed(store)) == ([], set())


def test_a_finding_that_comes_again_renews_the_symptom_and_is_no_second_quarantine(store: Store) -> None:
    find(store, finding())
    assert find(store, finding(at_s=NOW_S + 100.0)._replace(evidence="again")) is QuarantineOutcome.KNOWN
    (entry,) = standing(store)
    assert (entry.symptom_s, entry.evidence, entry.since_s) == (NOW_S + 100.0, "again", NOW_S)
    assert not is_check_due(entry, "", NOW_S + 100.0 + QUIET_S - 1.0)
    assert is_check_due(entry, "", NOW_S + 100.0 + QUIET_S)


@pytest.mark.parametrize("cleared", [GPU, HardwarePlace("n0")], ids=["the GPU", "its node"])
def test_what_is_older_than_the_clearance_never_acts_again(store: Store, cleared: HardwarePlace) -> None:
    find(store, finding())
    if cleared != GPU:
        find(store, finding(cleared))
    end(store, cleared, NOW_S + 2000.0)
    for at_s in (NOW_S, NOW_S + 1999.0, NOW_S + 2000.0):
        for cause in ("xid 79", "xid 48"):
            assert find(store, finding(at_s=at_s, cause=cause), NOW_S + 3000.0) is QuarantineOutcome.OLD
    assert standing(store) == []
    assert find(store, finding(at_s=NOW_S + 2001.0), NOW_S + 3000.0) is QuarantineOutcome.SET


def test_after_the_clock_was_set_back_a_new_finding_acts_and_a_replayed_one_does_not(store: Store) -> None:
    find(store, finding())
    end(store, GPU, NOW_S + 2000.0)
    now_s = NOW_S + 2100.0 - 3600.0
    assert find(store, finding(at_s=now_s - 7200.0), now_s) is QuarantineOutcome.OLD
    assert find(store, finding(at_s=now_s - 1.0), now_s) is QuarantineOutcome.SET


def test_two_gpus_of_a_node_within_an_hour_make_it_the_node(store: Store) -> None:
    find(store, finding(HardwarePlace("n0", 1), clears=Clears.REBOOT))
    find(store, finding(HardwarePlace("n0", 3), NOW_S + 3599.0))
    assert [it.place for it in standing(store)] == [HardwarePlace("n0", 1), HardwarePlace("n0", 3), HardwarePlace("n0")]
    assert standing(store)[-1].clears is Clears.REBOOT  # what ends both ends the node's
    assert closed(store) == {("n0", gpu) for gpu in range(4)}
    assert end(store, HardwarePlace("n0"), NOW_S + DAY_S, "operator ada") == 3


@pytest.mark.parametrize(
    ("second", "later_s"),
    [(HardwarePlace("n0", 1), 10.0), (HardwarePlace("n1", 3), 10.0), (HardwarePlace("n0", 3), 3601.0)],
)
def test_one_gpu_twice_or_two_nodes_or_an_hour_later_do_not(
    store: Store, second: HardwarePlace, later_s: float
) -> None:
    find(store, finding())
    find(store, finding(second, NOW_S + later_s, "xid 48"))
    assert all(it.place.scope is Scope.DEVICE for it in standing(store))


def test_the_rest_grows_with_each_return_and_checks_clear_the_same_twice_in_thirty_days_only(store: Store) -> None:
    now_s, rests, clears = NOW_S, [], []
    for _ in range(4):
        find(store, finding(at_s=now_s))
        (entry,) = standing(store)
        rests.append(entry.not_before_s - now_s)
        clears.append(entry.clears)
        end(store, GPU, now_s + DAY_S)
        now_s += 2.0 * DAY_S
    assert rests == [600.0, 3600.0, 21600.0, 21600.0]
    assert clears == [Clears.CHECKS, Clears.CHECKS, Clears.OPERATOR, Clears.OPERATOR]

    find(store, finding(cause="another", at_s=now_s))
    find(store, finding(HardwarePlace("n7", 1), at_s=now_s))
    assert [it.clears for it in standing(store)] == [Clears.CHECKS, Clears.CHECKS]
    end(store, GPU, now_s + 10.0)
    find(store, finding(at_s=now_s + 40.0 * DAY_S))
    assert (standing(store)[-1].clears, standing(store)[-1].tries) == (Clears.CHECKS, 1)


def test_checks_that_do_not_pass_keep_it_for_longer(store: Store) -> None:
    find(store, finding())
    for rest_s in BACK_OFF_S[1:]:
        store.write(lambda tx: record_failed_checks(tx, GPU, "gemm.ref: index 7", NOW_S + 700.0, writer="test"))
        (entry,) = standing(store)
        assert (entry.not_before_s, entry.checked) == (NOW_S + 700.0 + rest_s, "gemm.ref: index 7")


@pytest.mark.parametrize(
    ("clears", "boot", "due"),
    [
        (Clears.CHECKS, "boot-1", True), (Clears.CHECKS, "", True), (Clears.REBOOT, "boot-1", False),
        (Clears.REBOOT, "", False), (Clears.REBOOT, "boot-2", True), (Clears.OPERATOR, "boot-2", False),
    ],
)  # fmt: skip
def test_checks_clear_by_themselves_only_once_the_action_is_done(
    store: Store,
    clears: Clears,
    boot: str,
    due: bool,  # noqa: FBT001
) -> None:
    find(store, finding(clears=clears))
    (entry,) = standing(store)
    assert not is_check_due(entry, boot, NOW_S + BACK_OFF_S[0] - 1.0)
    assert is_check_due(entry, boot, NOW_S + BACK_OFF_S[0]) is due


def test_over_a_tenth_of_a_type_within_an_hour_is_an_alarm_and_no_quarantine(store: Store) -> None:
    acted = [find(store, finding(HardwarePlace(f"n{node}", 0), NOW_S + node)) for node in range(NODES)]
    assert acted == [QuarantineOutcome.SET] * 16 + [QuarantineOutcome.REFUSED] * 24
    assert (len(standing(store)), alarms(store)) == (16, 1)
    assert (
        find(store, finding(HardwarePlace("n30", 0), NOW_S + 2.0 * 3600.0)) is QuarantineOutcome.SET
    )  # an hour later it goes on


def test_clearing_does_not_refill_the_budget(store: Store) -> None:
    for node in range(16):
        find(store, finding(HardwarePlace(f"n{node}", 0)))
        end(store, HardwarePlace(f"n{node}", 0), NOW_S + 1.0)
    assert find(store, finding(HardwarePlace("n20", 0), NOW_S + 2.0)) is QuarantineOutcome.REFUSED


def test_each_type_has_a_budget_of_its_own_and_of_one_node_at_least(store: Store) -> None:
    small = Fleet({"a": 2, "b": 2, "c": 8}, {"a": "t4", "b": "t4", "c": "a100"})
    assert find(store, finding(HardwarePlace("a")), fleet=small) is QuarantineOutcome.SET
    assert find(store, finding(HardwarePlace("b", 0)), fleet=small) is QuarantineOutcome.REFUSED
    assert find(store, finding(HardwarePlace("c")), fleet=small) is QuarantineOutcome.SET
    hand = finding(HardwarePlace("b", 0), cause="noise", clears=Clears.OPERATOR)._replace(check=BY_HAND)
    assert find(store, hand, fleet=small) is QuarantineOutcome.SET  # an operator may always


def test_an_operator_may_put_back_what_was_just_cleared(store: Store) -> None:
    find(store, finding())
    end(store, GPU, NOW_S)
    assert find(store, finding(cause="noise", clears=Clears.OPERATOR)._replace(check=BY_HAND)) is QuarantineOutcome.SET


@pytest.mark.parametrize(
    "place", [HardwarePlace("n99"), HardwarePlace("n0", 4), HardwarePlace("n0", 0, "n1", 9), HardwarePlace("n0", -2)]
)
def test_what_the_cluster_does_not_have_is_refused(store: Store, place: HardwarePlace) -> None:
    with pytest.raises(InputError, match="the cluster has no"):
        find(store, finding(place))
    assert standing(store) == []


def test_a_link_is_the_same_from_both_ends_and_ends_with_either(store: Store) -> None:
    find(store, finding(HardwarePlace("n0", 3, "n0", 2)))
    assert find(store, finding(HardwarePlace("n0", 2, "n0", 3))) is QuarantineOutcome.KNOWN
    assert closed(store) == {("n0", 3)}
    assert end(store, HardwarePlace("n0", 2), NOW_S + 10.0) == 1


def test_a_gpu_of_a_node_in_quarantine_is_not_cleared_alone(store: Store) -> None:
    find(store, finding(HardwarePlace("n0")))
    with pytest.raises(InputError, match="the whole node n0 is in quarantine"):
        end(store, GPU, NOW_S + 1.0)
    with pytest.raises(InputError, match="n1:0 is not in quarantine"):
        end(store, HardwarePlace("n1", 0), NOW_S + 1.0)


ENDS = st.builds(HardwarePlace, st.sampled_from(["a", "b", "c"]), st.integers(0, 3))
PLACES = st.one_of(
    ENDS, st.builds(HardwarePlace, st.sampled_from(["a", "b", "c"])),
    st.tuples(ENDS, ENDS).filter(lambda it: it[0] != it[1]).map(lambda it: HardwarePlace(*it[0][:2],
    *it[1][:2]).with_ends_ordered()),
)  # fmt: skip


@given(st.lists(PLACES, max_size=12))
def test_no_job_gets_what_is_in_quarantine_nor_both_ends_of_a_link(places: list[HardwarePlace]) -> None:
    sizes = {"a": 4, "b": 4, "c": 4}
    closed = closed_gpus(places, sizes)
    free = {(node, gpu) for node, size in sizes.items() for gpu in range(size)} - closed
    for it in places:
        if it.scope is Scope.LINK:
            assert not {(end.node, end.gpu) for end in it.ends} <= free
        else:
            assert not any(it.node == node and it.gpu in (-1, gpu) for node, gpu in free)
    assert len(closed) <= sum(4 if it.scope is Scope.NODE else 1 for it in places)
