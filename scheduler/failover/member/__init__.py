"""What runs inside a training script: its seat in the ring, and the copy of its state."""
