"""One process of a plan that is carried out: `python -m longshore.stage plan.json train.py:build` (docs/planner.md)."""

import os

if __name__ == "__main__":
    from .cluster.files.paths import end_if_folder_gone

    end_if_folder_gone("longshore.stage")

from .planner.execution.worker import main
from .ring import Ring
from .ring.wire import ADDRESS

if __name__ == "__main__":
    raise SystemExit(main(ring=Ring if ADDRESS in os.environ else None))
