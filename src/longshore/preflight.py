"""Checks that travel with a job: `python -m longshore.preflight -- python train.py` (docs/preflight.md)."""

if __name__ == "__main__":
    from .scheduler.files.paths import end_if_gone

    end_if_gone("longshore.preflight")

from .scheduler.preflight.travelling import main

if __name__ == "__main__":
    main()
