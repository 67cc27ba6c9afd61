"""A scheduler as it runs: its parts put together, and what looks after them."""
