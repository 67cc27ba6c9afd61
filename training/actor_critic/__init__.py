"""PPO and A2C with masked actions, and replay."""
