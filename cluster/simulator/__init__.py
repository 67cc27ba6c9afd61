"""The event simulator: what happens between two decisions."""
