"""Policies: heuristics, networks, learned policies and how they are saved."""
