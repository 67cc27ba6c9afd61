"""Offloading: state of a training leaves memory while nothing needs it, and returns before it is used."""
