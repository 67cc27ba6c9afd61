"""Messages that come again and again are logged now and then."""

from longshore.scheduler.logs import SUMMARY_EVERY_S, Repeats


def test_the_same_words_are_logged_at_once_and_then_once_a_minute_with_their_count() -> None:
    repeats = Repeats()
    logged = [repeats.message_to_log("away", 0.25 * poll) for poll in range(round(4 * SUMMARY_EVERY_S) + 1)]
    assert logged[0] == "away"
    assert "239" in logged[-1]
    assert set(logged[1:-1]) == {""}


def test_other_words_and_what_comes_back_after_its_end_are_logged_at_once() -> None:
    repeats = Repeats()
    assert [repeats.message_to_log(words, 0.0) for words in ("away", "away", "slow", "slow")] == [
        "away",
        "",
        "slow",
        "",
    ]
    repeats.forget()
    assert repeats.message_to_log("slow", 0.0) == "slow"
