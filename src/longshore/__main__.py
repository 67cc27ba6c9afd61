"""Run the command line with `python -m longshore`."""

from .cli import main

main()
