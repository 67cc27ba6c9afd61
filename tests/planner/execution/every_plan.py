"""One of eight processes that carry out many plans, one after the other: each plan with its first ranks."""

import json
import os
import sys
from pathlib import Path

from longshore.planner.execution.plan_file import read_plan
from longshore.planner.execution.worker import main


def run() -> None:
    for given in json.loads(Path(sys.argv[1]).read_text()):
        ranks = read_plan(Path(given["arguments"][0])).ranks
        os.environ.update(WORLD_SIZE=str(ranks), MASTER_PORT=str(given["port"]))
        if int(os.environ["RANK"]) < ranks and main(given["arguments"]):
            raise SystemExit(1)


run()
