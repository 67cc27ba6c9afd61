"""`make demo-plan`: measures this machine, plans a small GPT for it, and trains by the plan with four processes.

What was predicted stands beside what it took, stage by stage. Everything on the screen was measured in this run.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).absolute().parent
MODEL = HERE / "small_gpt.py"
LONGSHORE = [sys.executable, "-m", "longshore"]
RANKS, BATCH, STEPS = 4, 32, 30


def call(*arguments: object, silent: bool = False) -> None:
    """Run `longshore`, and let it speak unless it is to be silent."""
    line = [*map(str, arguments)]
    print(f"\n$ longshore {' '.join(line)}", flush=True)
    out = subprocess.DEVNULL if silent else None
    if (done := subprocess.run([*LONGSHORE, *line], check=False, stdout=out)).returncode:
        raise SystemExit(done.returncode)


def fastest_of_four(options: list[object]) -> str:
    """Return the degrees of the fastest plan that takes all ranks."""
    line = [*LONGSHORE, "plan", "find", *map(str, options), "--table", "--json"]
    answer = json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)
    rows = [row for row in answer["table"] if row["gpus"] == RANKS and "step_s" in row]
    best = min(rows, key=lambda row: row["step_s"])
    return f"{best['data']}x{best['pipeline']}x1"


def main() -> None:
    """Show it."""
    with tempfile.TemporaryDirectory(prefix="longshore-plan-") as folder:
        here, plan = Path(folder) / "here.yaml", Path(folder) / "plan.json"
        call("plan", "measure", "--ranks", RANKS, "--out", here)
        options = [MODEL, "--samples", BATCH * STEPS, "--batch", BATCH, "--hardware", here]
        call("plan", "find", *options, "--table")
        print(f"\nFewer ranks may be faster, as they share cores. Of the plans with {RANKS} the fastest is run:")
        call("plan", "find", *options, "--degrees", fastest_of_four(options), "--out", plan, silent=True)
        call("plan", "run", plan, MODEL, "--steps", STEPS)


if __name__ == "__main__":
    main()
