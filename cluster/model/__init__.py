"""The nouns of the simulator: topology, workload, scenarios and outcome."""
