"""Detectors of slow steps, each by its name. They read no clock, and start empty with each attempt."""
