"""Benchmarks with bars: `python -m benchmarks` runs them all; docs/benchmarks.md says what each measures."""
