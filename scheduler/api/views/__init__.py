"""What the API shows, and where it is looked up."""
