from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.budgets import examples

from .simulated_ring import World

EVENTS: dict[str, Callable[[World, int], object]] = {
    "move": lambda world, number: world.move(number),
    "moves": lambda world, number: world.move_all(number + 1),
    "launcher": lambda world, number: world.launcher_moves(),
    "kill": lambda world, number: world.kill(number),
    "cut": lambda world, number: world.cut(number),
    "restart": lambda world, number: world.restart(),
    "fault": lambda world, number: world.fault(number),
    "stale": lambda world, number: world.stale(number),
    "stop": lambda world, number: world.stop(number),
    "join": lambda world, number: world.start() if len(world.members) < 9 else None,
    "time": lambda world, number: world.pass_time(0.5 + 3.0 * number),
}
CALM = ("move", "moves", "launcher", "time")
SCRIPTS = st.lists(
    st.tuples(st.one_of(st.sampled_from(CALM), st.sampled_from(sorted(EVENTS))), st.integers(0, 5)), max_size=60
)


def run(world: World, script: list[tuple[str, int]]) -> None:
    for name, number in script:
        if number < len(world.members):
            EVENTS[name](world, number)


@settings(max_examples=examples(300))
@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 1 << 30), SCRIPTS)
def test_a_ring_runs_or_is_lost_with_all_its_state_whatever_happened(
    seats: int, spares: int, seed: int, script: list[tuple[str, int]]
) -> None:
    world = World(seats, spares, seed)
    run(world, script)
    assert world.run_to_rest(), world.coordinator.state
