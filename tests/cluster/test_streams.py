"""Streams of random numbers: their own for each purpose, and the same at every call."""

import numpy as np

from longshore.cluster.presets.problems import Stream, stream


def test_streams_are_those_that_numpy_spawns_from_one_seed() -> None:
    for purpose, spawned in zip(Stream, np.random.default_rng(7).spawn(len(Stream)), strict=True):
        assert (stream(7, purpose).random(8) == spawned.random(8)).all()


def test_no_purpose_and_no_other_seed_draws_what_another_does() -> None:
    drawn = np.array([stream(seed, purpose).random(1000) for seed in (0, 1) for purpose in Stream])
    assert np.abs(np.corrcoef(drawn) - np.eye(len(drawn))).max() < 0.15
