"""Pages of the dashboard, each in a file of its own."""
