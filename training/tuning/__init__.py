"""The search for hyper-parameters: trials, where they run, and the study that they belong to."""
