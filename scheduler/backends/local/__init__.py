"""Jobs as processes of this machine, each under a supervisor of its own that outlives the scheduler."""
