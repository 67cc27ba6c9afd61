"""Clusters and problems that are ready to use, from files or by name."""
