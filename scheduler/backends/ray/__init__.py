"""The Ray backend: each attempt holds the exact nodes and GPUs that were decided, in a placement group."""
