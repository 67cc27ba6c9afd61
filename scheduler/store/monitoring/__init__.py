"""Rows of the monitoring of nodes: what stands in quarantine, and how long jobs compute on each type of node."""
