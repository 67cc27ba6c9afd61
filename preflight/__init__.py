"""Checks of the GPUs and links of a placement before a job starts on it, and order on its nodes after it.

For operators of any scheduler: `python -m longshore.preflight -- python train.py` checks on the way to a job's command.
The live scheduler runs the same checks in warm processes, one a node.
"""
