"""What is concluded from what was found at a agent_port, for everything that can be found."""

import itertools

from longshore.scheduler.health.evidence import Evidence, PortState, PortWitness, evidence_words, verdict_of
from longshore.scheduler.model.states import ProbeVerdict

OWN = [None, *(PortWitness("", result, known) for result, known in itertools.product(PortState, (True, False)))]
OTHER = [None, *(PortWitness("n2", result, known) for result, known in itertools.product(PortState, (True, False)))]
EVERY = [Evidence(*it) for it in itertools.product(OWN, OTHER, (True, False))]


def plainly(it: Evidence) -> ProbeVerdict:
    """The table of docs/nodes.md, line by line."""
    both = [found for found in (it.own, it.other) if found is not None]
    if any(found.result == "answered" for found in both):
        return ProbeVerdict.REACHED
    if any(found.result == "accepted" for found in both):
        return ProbeVerdict.STUCK
    failures = [
        found for found in both if found.reached_before and found.result in ("refused", "no route", "timed out")
    ]
    refusals = [found for found in failures if found.result == "refused"]
    if len(refusals) == 2 or (refusals and refusals[0].node == "" and it.other is None and not it.has_others):
        return ProbeVerdict.GONE
    return ProbeVerdict.SILENT if len(failures) == 2 else ProbeVerdict.NONE


def test_what_is_concluded_is_what_the_table_says() -> None:
    assert {it: verdict_of(it) for it in EVERY} == {it: plainly(it) for it in EVERY}
    assert {plainly(it) for it in EVERY} == set(ProbeVerdict)


def test_no_node_is_dead_by_a_prober_that_never_reached_it() -> None:
    doubted = [it for it in EVERY if not any(found and found.reached_before for found in (it.own, it.other))]
    assert not any(verdict_of(it).is_dead for it in doubted)
    assert len(doubted) > 50


def test_no_node_is_dead_by_another_nodes_probe_alone() -> None:
    assert not any(verdict_of(it).is_dead for it in EVERY if it.own is None)


def test_words_name_the_prober_and_its_result() -> None:
    refused, late = (
        PortWitness("", PortState.REFUSED, reached_before=True),
        PortWitness("n2", PortState.TIMED_OUT, reached_before=False),
    )
    doubt = "(it never reached it before, so that is no evidence)"
    assert evidence_words(Evidence(refused, late)) == f"the scheduler is refused, n2 gets no answer {doubt}"
    assert (
        evidence_words(Evidence(refused, None, has_others=False))
        == "the scheduler is refused, no other agent can probe it"
    )
    reached = PortWitness("n2", PortState.ANSWERED, reached_before=True)
    assert (
        evidence_words(Evidence(refused, reached)) == "n2 reaches it: the link between it and the scheduler is broken"
    )
    assert evidence_words(Evidence()) == ""


def test_who_found_something_is_named_or_the_node_is_reached() -> None:
    for evidence in EVERY:
        words = evidence_words(evidence)
        if verdict_of(evidence) is not ProbeVerdict.REACHED:
            assert ("the scheduler" in words) == (evidence.own is not None)
            assert ("n2" in words) == (evidence.other is not None)
        assert bool(words) == (evidence.own is not None or evidence.other is not None or not evidence.has_others)
