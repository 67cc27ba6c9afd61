"""Commands for who runs jobs."""
