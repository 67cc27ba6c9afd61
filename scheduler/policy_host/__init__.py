"""The host of policies: a policy decides in a process of its own, and can never stop the cluster."""
