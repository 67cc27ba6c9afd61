"""What a cluster is: nodes, GPUs, jobs, run times, faults, traces and the event simulator."""
