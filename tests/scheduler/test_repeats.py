"""Messages that come again and again are told now and then."""

from longshore.scheduler.logs import SUMMARY_EVERY_S, Repeats


def test_the_same_words_are_told_at_once_and_then_once_a_minute_with_their_count() -> None:
    repeats = Repeats()
    told = [repeats.told("away", 0.25 * look) for look in range(round(4 * SUMMARY_EVERY_S) + 1)]
    assert (told[0], told[-1]) == ("away", "away (239 times more since it was last told)")
    assert set(told[1:-1]) == {""}


def test_other_words_and_what_comes_back_after_its_end_are_told_at_once() -> None:
    repeats = Repeats()
    assert [repeats.told(words, 0.0) for words in ("away", "away", "slow", "slow")] == ["away", "", "slow", ""]
    repeats.end()
    assert repeats.told("slow", 0.0) == "slow"
