"""Training runs: presets, callbacks and metrics."""
