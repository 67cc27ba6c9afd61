"""Readers of public job-trace formats, one module each."""
