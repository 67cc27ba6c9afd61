"""A scheduler as a server: the web application, its sockets, and the check of its configuration."""
