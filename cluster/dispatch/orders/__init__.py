"""Order regimes: which job may start next (docs/simulator.md)."""
