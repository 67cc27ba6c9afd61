"""Candidates for a decision: sets of nodes, whole placements, and what they lead to."""
