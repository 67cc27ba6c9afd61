"""Which job may start next: the queue, reservations, and turns of users."""
