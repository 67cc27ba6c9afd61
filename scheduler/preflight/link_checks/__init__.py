"""The checks of links: between GPUs, to the host, and to other nodes."""
