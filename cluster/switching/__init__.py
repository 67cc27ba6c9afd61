"""What happens to a job in one ring when a GPU of it fails."""
