"""The nouns of the scheduler: states, jobs, placements and runs. Nothing here acts."""
