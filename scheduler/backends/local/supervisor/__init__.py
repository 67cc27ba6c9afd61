"""The process that runs an attempt on a machine. Standard library only."""
