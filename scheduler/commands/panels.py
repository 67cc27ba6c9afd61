"""The groups in which `longshore --help` shows the commands, in their order."""

JOBS = "Run jobs"
SCHEDULER = "Run a scheduler"
POLICIES = "Simulate, train and compare policies"
