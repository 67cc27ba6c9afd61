"""Policies improved at decision time: alternatives are tried out in sampled futures."""
