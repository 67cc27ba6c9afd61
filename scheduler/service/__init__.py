"""A scheduler as it runs: its parts put together, and its upkeep."""
