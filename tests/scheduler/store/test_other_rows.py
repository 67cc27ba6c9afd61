from functools import partial

import pytest

from longshore.cluster.model.placement import Share
from longshore.scheduler.access.tokens import (
    TokenRow,
    add_token,
    caller_of,
    digest_of,
    find_token,
    has_tokens,
    has_valid_tokens,
    record_token_use,
    revoke_token,
    tokens_of,
)
from longshore.scheduler.store.attempts import (
    NewDecision,
    add_decisions,
    decisions_after,
    last_decisions,
    record_outcomes,
)
from longshore.scheduler.store.database import FencedError, Store, TakenNameError
from longshore.scheduler.store.jobs import StoredAnswer, delete_answers, find_answer, keep_answer
from longshore.scheduler.store.nodes import (
    GpuRow,
    NodeRow,
    closed_nodes,
    faulty_gpus,
    list_gpus,
    list_nodes,
    nodes_out_of_service,
    set_out_of_service,
    write_health,
)
from longshore.scheduler.store.schema import Liveness

from .store_rows import all_events, start, submit

N1 = NodeRow("n1", "local", "a100", False, Liveness.UP, 1.0, 2.0, 0)  # noqa: FBT003
GPU = GpuRow("n1", 0, True, 1.0)  # noqa: FBT003


def test_a_node_and_its_gpus_are_as_they_were_last_seen(store: Store, fence: int) -> None:
    later = N1._replace(liveness=Liveness.DOWN, misses=5, agent_s=1.5)
    for row, gpu in ((N1, GPU), (later, GPU._replace(healthy=False))):
        store.write(partial(write_health, fence=fence, nodes=[row], gpus=[gpu], events=[]))
    with store.read() as tx:
        assert list_nodes(tx) == [later]
        assert list_gpus(tx) == [GPU._replace(healthy=False)]
        assert faulty_gpus(tx) == {("n1", 0)}
        assert closed_nodes(tx) == {"n1"}


def test_what_a_scheduler_sees_of_a_node_leaves_it_out_of_service(store: Store, fence: int) -> None:
    wishing = partial(set_out_of_service, row=N1, at_s=3.0, writer="api")
    changed = [store.write(partial(wishing, reason=reason)) for reason in ("fan", "fan", "")]
    store.write(partial(wishing, reason="fan"))
    store.write(partial(write_health, fence=fence, nodes=[N1], gpus=[], events=[]))
    with store.read() as tx:
        assert [row.out_of_service for row in list_nodes(tx)] == ["fan"]
        assert nodes_out_of_service(tx) == {"n1"}
    assert changed == [True, False, True]
    assert [(it.was, it.now) for it in all_events(store)] == [
        ("in service", "out of service"), ("out of service", "in service"), ("in service", "out of service"),
    ]  # fmt: skip


def test_a_scheduler_that_leads_no_more_changes_no_node(store: Store, fence: int) -> None:
    with pytest.raises(FencedError):
        store.write(partial(write_health, fence=fence - 1, nodes=[N1], gpus=[GPU], events=[]))
    with store.read() as tx:
        assert list_nodes(tx) == []


def decided(job_id: str) -> NewDecision:
    chosen = (Share("n0", (1, 2)), Share("n1", (0,)))
    return NewDecision(
        job_id, 1, 2.0, "set", "1f", "act", chosen, None, {"actions": [0]}, b"\x00\x01", b"\x01", b"\x02", b"{}", 0.002
    )


def test_a_decision_is_kept_with_what_came_of_it(store: Store, fence: int) -> None:
    job = submit(store)
    new = decided(job.id)
    store.write(partial(add_decisions, new=[new._replace(number=None), new]))
    store.write(lambda tx: record_outcomes(tx, [(job.id, 1, "success")]))
    with store.read() as tx:
        found = last_decisions(tx, 100, job.id)[::-1]
    assert [row.outcome for row in found] == ["", "success"]
    assert found[1][1:-2] == new[:9]


def test_decisions_are_read_whole_and_in_parts_with_the_times_of_their_attempts(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    new = decided(job.id)
    store.write(partial(add_decisions, new=[new._replace(number=number) for number in (None, 1)]))
    with store.read() as tx:
        (first,) = decisions_after(tx, 0, 1)
        (second,) = decisions_after(tx, first.row.seq, 10)
    assert first.opened_s is None
    assert second[1:] == (*new[9:13], 1.0, None, None)


TOKEN = TokenRow("aa", "laptop", "ada", "user", 1.0, None)


def test_a_token_is_found_by_its_digest_with_its_last_use(store: Store) -> None:
    store.write(lambda tx: add_token(tx, TOKEN))
    store.write(lambda tx: record_token_use(tx, "aa", 5.0))
    with store.read() as tx:
        assert find_token(tx, "aa") == TOKEN._replace(used_s=5.0)
        assert find_token(tx, "ab") is None
        assert [token.name for token in tokens_of(tx, "ada")] == ["laptop"]
        assert tokens_of(tx, "bob") == []


@pytest.mark.parametrize("expires_s", [None, 1e6])
def test_a_revoked_token_is_invalid_by_any_clock_and_still_guards_the_store(
    store: Store, expires_s: float | None
) -> None:
    store.write(lambda tx: add_token(tx, TOKEN._replace(digest=digest_of("ls_x"), expires_s=expires_s)))
    assert [store.write(lambda tx: revoke_token(tx, "ada", "laptop", 5000.0)) for _ in range(2)] == [True, False]
    with store.read() as tx:
        row = find_token(tx, digest_of("ls_x"))
        assert row is not None
        assert has_tokens(tx)
        for now_s in (5000.0, 4999.0, 1400.0, 1.0, 0.5, 1e9):
            assert caller_of(row, "ls_x", now_s) is None
            assert not has_valid_tokens(tx, now_s)


def test_a_name_is_free_again_once_its_token_has_expired(store: Store) -> None:
    store.write(lambda tx: add_token(tx, TOKEN._replace(expires_s=3.0)))
    with pytest.raises(TakenNameError, match="laptop"):
        store.write(lambda tx: add_token(tx, TOKEN._replace(digest="bb", made_s=2.0)))
    store.write(lambda tx: add_token(tx, TOKEN._replace(digest="cc", made_s=3.0)))


def test_the_first_answer_to_a_key_stays_until_it_is_forgotten(store: Store) -> None:
    first, second = (StoredAnswer("hash", "hash", 201, {"id": name}, 1.0) for name in ("a", "b"))
    kept = [store.write(partial(keep_answer, owner="ada", key="k", answer=answer)) for answer in (first, second)]
    assert kept == [True, False]
    with store.read() as tx:
        assert find_answer(tx, "ada", "k") == first
        assert find_answer(tx, "bob", "k") is None
    assert [store.write(partial(delete_answers, before_s=before_s)) for before_s in (1.0, 2.0)] == [0, 1]
