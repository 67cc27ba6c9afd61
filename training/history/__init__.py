"""The past of a live scheduler: its jobs, faults and decisions, from the file that it exports."""
