"""Public traces: which there are, and downloading them."""
