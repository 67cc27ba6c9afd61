"""Prometheus metrics of the live scheduler."""
