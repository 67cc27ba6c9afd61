"""One warm process for each node: it holds what takes long to load, and runs the checks."""
