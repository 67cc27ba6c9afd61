"""The control loop: desired and observed state become, step by step, the same."""
