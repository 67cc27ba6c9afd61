"""Workloads: drawn from profiles, cut into windows, and estimated."""
