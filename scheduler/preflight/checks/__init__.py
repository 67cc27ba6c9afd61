"""The checks of a node, its GPUs and what they compute: one file for each thing that is looked at."""
