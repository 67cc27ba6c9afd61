"""Health of nodes: which of them answer, and which GPUs may be given to jobs."""
