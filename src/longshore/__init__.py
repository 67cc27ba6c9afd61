"""Longshore: learned placement of deep-learning training jobs on GPU clusters."""
