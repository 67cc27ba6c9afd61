"""Migrations of the store, which `database.py` runs."""
