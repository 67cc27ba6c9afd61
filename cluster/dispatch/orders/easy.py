"""EASY backfilling (Lifka 1995)."""

from .order import Order

ORDER = Order("the head; while it does not fit, jobs behind it that do not delay it, in queue order")
