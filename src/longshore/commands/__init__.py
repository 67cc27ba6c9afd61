"""The commands that need no scheduler: a module each. Heavy modules are imported when a command runs."""
