"""What is done about running jobs by what their steps and their GPUs tell."""
