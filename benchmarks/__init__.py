"""Benchmarks with bars: `python -m benchmarks` runs them all; docs/developers/benchmarks.md explains each."""
