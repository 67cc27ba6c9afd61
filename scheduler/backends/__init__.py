"""What runs jobs: local processes and others, behind one small interface."""
