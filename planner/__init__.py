"""From a model, a deadline and a cluster to GPUs: data, pipeline and tensor parallel plans (SPEC P1)."""
