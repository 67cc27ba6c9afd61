"""Fault models: how often the GPUs, nodes and racks of a cluster fail, and how they recover.

A model is a configuration, the `faults` section of a cluster file, which draws fault rates for the cluster. Recorded
faults are no model: they come from a file of their own (cluster/faults/recorded.py).
"""
