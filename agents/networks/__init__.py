"""Neural networks, as PyTorch modules."""
