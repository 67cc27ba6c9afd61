"""The durable store of the scheduler: SQLite in one file, or PostgreSQL."""
