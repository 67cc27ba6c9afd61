"""One process of a plan that is carried out: `python -m longshore.stage plan.json train.py:build` (docs/planner.md)."""

from .planner.execution.worker import main

if __name__ == "__main__":
    raise SystemExit(main())
