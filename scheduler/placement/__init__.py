"""Decisions: of a policy, checked, or of a heuristic where the policy fails."""
