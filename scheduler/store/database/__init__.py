"""Connections, tables and migrations of the store, and its one writer."""
