"""Files of users: read with errors that name the line, and written without losing any."""
