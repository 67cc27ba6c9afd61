"""Figures of a comparison: pictures that can be written to a file or into a page."""
