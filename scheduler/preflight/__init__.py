"""Checks that run on a placement before a job starts on it, and what is put in order after it."""
