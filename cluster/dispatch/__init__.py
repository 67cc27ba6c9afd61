"""Who may start next, and on which GPUs: order regimes, the queue, reservations and placing."""
