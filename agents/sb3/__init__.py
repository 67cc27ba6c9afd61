"""Models of Stable-Baselines3 and sb3-contrib as policies."""
