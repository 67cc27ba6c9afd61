"""Objects of Kubernetes, as they are written and read."""
