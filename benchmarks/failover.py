"""Switching a failed member of a ring: which candidate takes its seat."""

from collections.abc import Iterator

from .harness import Row, main
from .random_rings import RINGS, measure_choices


def measure() -> Iterator[Row]:
    """Choose, and yield what came of it."""
    yield Row("random rings", RINGS, "rings")
    yield from measure_choices()


if __name__ == "__main__":
    main(measure)
