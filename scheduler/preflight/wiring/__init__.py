"""What the wiring should be, what it is, and how the two differ."""
