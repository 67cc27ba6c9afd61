"""Pure rules: what is done next about an attempt or a job, retries and quotas."""
