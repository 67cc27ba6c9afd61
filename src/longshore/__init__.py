"""Longshore: learned placement of deep-learning training jobs on GPU clusters."""

from .registration import register_with_gymnasium

register_with_gymnasium()
