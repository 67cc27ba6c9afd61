"""A policy that goes on learning from the scheduler that it serves."""
