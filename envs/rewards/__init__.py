"""Rewards (docs/environments.md), compiled; gamma is 1. Source: DESIGN 6; SPEC R5."""
