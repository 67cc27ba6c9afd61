"""First in, first out."""

from .order import Order

ORDER = Order("the head of the queue only; while it does not fit or waits, no other job starts", passes=False)
