"""Learned policies: how they are saved and loaded, and how they decide."""
