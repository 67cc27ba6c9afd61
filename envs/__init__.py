"""Gymnasium environments over the simulator: observations, masks and rewards."""
