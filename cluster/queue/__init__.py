"""Who may start next: order regimes, the queue, and reservations."""
