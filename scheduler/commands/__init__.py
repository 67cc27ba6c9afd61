"""Commands of the live scheduler."""
