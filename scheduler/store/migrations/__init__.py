"""Migrations of the store, which `migrate.py` runs."""
