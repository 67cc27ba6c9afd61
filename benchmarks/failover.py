"""Switching a failed member of a ring: which candidate takes its seat, and how soon the ring goes on."""

from collections.abc import Iterator

from .copying import measure_copies
from .harness import Row, main
from .link_probes import measure_probes
from .random_rings import RINGS, measure_choices
from .rings import measure_recoveries
from .seat_twin import measure_twin


def measure() -> Iterator[Row]:
    """Choose, switch, and yield what came of it."""
    yield Row("random rings", RINGS, "rings")
    yield from measure_choices()
    yield from measure_twin()
    yield from measure_recoveries()
    yield from measure_copies()
    yield from measure_probes()


if __name__ == "__main__":
    main(measure)
