"""Bandwidths between nodes, measured by their agents when a ring has an empty seat."""
