"""Rings that outlive their members: who sits where, and how a ring goes on after a fault."""
