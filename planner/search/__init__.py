"""Which plan: all layouts, layers balanced over stages, and the fewest GPUs that meet a deadline."""
