"""Planned trainings: processes that train the stages of a model, and the measurements of their times."""
