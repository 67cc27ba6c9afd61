"""Pages that show a running scheduler in a browser."""
