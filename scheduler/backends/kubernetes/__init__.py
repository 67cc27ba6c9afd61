"""Jobs as pods of a Kubernetes cluster: one pod for each node of a placement."""
