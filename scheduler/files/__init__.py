"""Durable files and processes of this machine. Standard library only."""
