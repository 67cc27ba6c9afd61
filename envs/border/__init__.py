"""What comes into environments from outside, and environments by name."""
