"""Decisions: a policy is asked, checked, and replaced by a heuristic where it fails."""
