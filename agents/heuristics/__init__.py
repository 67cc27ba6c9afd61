"""Heuristics: rules that need no training."""
