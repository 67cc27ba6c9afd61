"""Bad nodes found by pairs, against groups whose bad members are known."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.preflight.rounds import Pair, first_pairs, second_pairs, suspects_of


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    members = [f"n{at}" for at in range(draw(st.integers(2, 20)))]
    return members, set(draw(st.lists(st.sampled_from(members), unique=True)))


def is_bad(pair: Pair, bad: set[str]) -> bool:
    return bool(set(pair) & bad)


@given(groups())
def test_pairs_isolate_exactly_the_bad_members_once_one_pair_is_good(group: tuple[list[str], set[str]]) -> None:
    members, bad = group
    first = [pair for pairs in first_pairs(members) for pair in pairs]
    suspects = suspects_of(members, [pair for pair in first if is_bad(pair, bad)])
    second = [pair for pairs in second_pairs(members, suspects) for pair in pairs]
    isolated = {pair[0] for pair in second if is_bad(pair, bad)}
    if any(not is_bad(pair, bad) for pair in first):
        assert isolated == bad
    else:
        assert isolated == set()
        assert suspects == members


@given(groups())
def test_pairs_of_one_round_have_no_member_in_common(group: tuple[list[str], set[str]]) -> None:
    members, bad = group
    first = [pair for pairs in first_pairs(members) for pair in pairs]
    suspects = suspects_of(members, [pair for pair in first if is_bad(pair, bad)])
    for pairs in (*first_pairs(members), *second_pairs(members, suspects)):
        named = [member for pair in pairs for member in pair]
        assert len(named) == len(set(named))


@given(groups())
def test_every_suspect_is_paired_with_a_good_member(group: tuple[list[str], set[str]]) -> None:
    members, bad = group
    suspects = suspects_of(members, [pair for pairs in first_pairs(members) for pair in pairs if is_bad(pair, bad)])
    second = [pair for pairs in second_pairs(members, suspects) for pair in pairs]
    if len(suspects) < len(members):
        assert [suspect for suspect, _ in second] == suspects
        assert not {good for _, good in second} & bad
