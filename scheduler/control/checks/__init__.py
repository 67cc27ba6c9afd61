"""What the leading scheduler does about checks of nodes before jobs start, and after they end."""
