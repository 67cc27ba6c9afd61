"""The live scheduler fills seats as the simulator does, in the states that simulations come to."""

from benchmarks.seat_twin import measured

CASES = 80


def test_in_the_states_of_simulations_the_live_scheduler_chooses_as_the_simulator() -> None:
    counts = measured(CASES)
    assert counts["compared"] == counts["equal"] == CASES
    assert counts["filled"] > CASES // 4
