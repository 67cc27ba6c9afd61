"""Jobs that users submit by sbatch, and that wait for us."""
