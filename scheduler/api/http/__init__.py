"""What all endpoints share: who asks, bounds, problems and streams."""
