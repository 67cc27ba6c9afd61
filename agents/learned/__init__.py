"""Learned policies: how they are saved, loaded and asked."""
