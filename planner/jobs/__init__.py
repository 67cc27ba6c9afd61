"""Plans of the jobs of a trace."""
