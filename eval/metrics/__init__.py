"""Figures of a run that policies are compared by, each in a file of its own."""
