"""Checks of the GPUs and links of a placement before a job starts on it, and clean-up of its nodes after it.

For operators of any scheduler: `python -m longshore.preflight -- python train.py` checks before a job's command.
The live scheduler runs the same checks in warm processes, one per node. `rounds.py` has one round, step by step.
"""
