"""Rows of the store, one module a table."""
