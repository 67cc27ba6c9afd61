"""Sub-tasks of one job that share a device: which of them has it, pass by pass."""
