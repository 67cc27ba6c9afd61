"""Checks that travel with a job: `python -m longshore.preflight -- python train.py` (docs/preflight.md)."""

from .scheduler.preflight.travelling import main

if __name__ == "__main__":
    main()
