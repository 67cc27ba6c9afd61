"""Fault models: how often the GPUs, nodes and racks of a cluster fail, and how they recover.

A model is a configuration (the `faults` section of a cluster file) and a function that builds fault rates from it.
Recorded faults are no model: they come from a file of their own (cluster/faults/recorded.py).
"""
