"""EASY backfilling, the shortest first (Tsafrir et al. 2007)."""

from .order import Order
from .shortest import expected_work

ORDER = Order(
    "the head; while it does not fit, jobs behind it that do not delay it, the shortest first", key=expected_work
)
