"""Training of networks that score whole placements."""
