"""The checks: one file for each thing that is looked at."""
