"""The control loop: what is wanted and what is seen become, step by step, the same."""
