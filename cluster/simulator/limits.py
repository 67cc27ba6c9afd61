"""How much may happen before a simulation is given up, and what is said then."""

NO_ROW = "there is no such row of the simulation, or no such scenario, or the row was not reset"
# Where more than so much happens, faults come faster than anything could be done.
MOST_STOPS = 100_000  # of one job
MOST_CHANGES = 1_000_000  # faults and repairs at one moment
MOST_QUIET = 5_000_000  # moments without a submission, a start or an end of a job, whatever else is decided at them
STOPPED_FOR_EVER = "hazard_per_s: faults stopped a job 100,000 times before it could end"
FAILING_AT_ONCE = "hazard_per_s: a million faults came at one moment, so that time stands still"
NOTHING_ELSE = "hazard_per_s: faults and repairs filled five million moments in which no job could start or end"
FEWER_FAULTS = "lower the hazards, checkpoint_s or repair_mean_s of the cluster file, or let jobs ask fewer GPUs"
