"""What is concluded from what was found at a door, for everything that can be found."""

import itertools

from longshore.scheduler.health.liveness import Evidence, Found, Sight, verdict_of, words_of
from longshore.scheduler.model.states import ProbeVerdict

OWN = [None, *(Found("", sight, known) for sight, known in itertools.product(Sight, (True, False)))]
OTHER = [None, *(Found("n2", sight, known) for sight, known in itertools.product(Sight, (True, False)))]
EVERY = [Evidence(*it) for it in itertools.product(OWN, OTHER, (True, False))]


def plainly(it: Evidence) -> ProbeVerdict:
    """The table of docs/nodes.md, line by line."""
    both = [found for found in (it.own, it.other) if found is not None]
    if any(found.sight == "answered" for found in both):
        return ProbeVerdict.REACHED
    if any(found.sight == "accepted" for found in both):
        return ProbeVerdict.STUCK
    failures = [found for found in both if found.has_been_in and found.sight in ("refused", "no route", "timed out")]
    refusals = [found for found in failures if found.sight == "refused"]
    if len(refusals) == 2 or (refusals and refusals[0].who == "" and it.other is None and not it.has_others):
        return ProbeVerdict.GONE
    return ProbeVerdict.SILENT if len(failures) == 2 else ProbeVerdict.NONE


def test_what_is_concluded_is_what_the_table_says() -> None:
    assert {it: verdict_of(it) for it in EVERY} == {it: plainly(it) for it in EVERY}
    assert {plainly(it) for it in EVERY} == set(ProbeVerdict)


def test_nobody_is_dead_by_who_was_never_let_in() -> None:
    doubted = [it for it in EVERY if not any(found and found.has_been_in for found in (it.own, it.other))]
    assert not any(verdict_of(it).is_dead for it in doubted)
    assert len(doubted) > 50


def test_nobody_is_dead_by_the_word_of_another_node_alone() -> None:
    assert not any(verdict_of(it).is_dead for it in EVERY if it.own is None)


def test_words_name_who_looked_and_what_was_found() -> None:
    refused, late = Found("", Sight.REFUSED, has_been_in=True), Found("n2", Sight.TIMED_OUT, has_been_in=False)
    doubt = "(it never reached it before, so that says nothing)"
    assert words_of(Evidence(refused, late)) == f"the scheduler is refused, n2 gets no answer {doubt}"
    assert words_of(Evidence(refused, None, has_others=False)) == "the scheduler is refused, no other agent can look"
    reached = Found("n2", Sight.ANSWERED, has_been_in=True)
    assert words_of(Evidence(refused, reached)) == "n2 reaches it: the link between it and the scheduler is broken"
    assert words_of(Evidence()) == ""


def test_who_found_something_is_named_or_the_node_is_reached() -> None:
    for evidence in EVERY:
        words = words_of(evidence)
        if verdict_of(evidence) is not ProbeVerdict.REACHED:
            assert ("the scheduler" in words) == (evidence.own is not None)
            assert ("n2" in words) == (evidence.other is not None)
        assert bool(words) == (evidence.own is not None or evidence.other is not None or not evidence.has_others)
