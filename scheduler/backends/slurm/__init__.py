"""The Slurm backend: each attempt is a Slurm job of its own, with exact nodes and GPUs."""
