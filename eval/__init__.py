"""Policies side by side: statistics, figures and reports."""
