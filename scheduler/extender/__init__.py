"""An HTTP extender of kube-scheduler: a policy ranks the nodes of an existing Kubernetes cluster."""
