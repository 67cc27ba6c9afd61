"""Attempts on nodes that share a folder with the scheduler: their supervisors and records, and how they are read."""
