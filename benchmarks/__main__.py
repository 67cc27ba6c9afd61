"""Run the benchmarks of NAMES, each in a process of its own, and write benchmarks/results.json."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .harness import RESULTS, ROOT, progress, stamp_of_run, write_results

# In this order. The others run when they are asked for: they take long, or need what not every machine has.
NAMES = (
    "simulator", "environment", "training", "reference", "policy", "hetero64", "decision", "patent", "store",
    "history", "scheduler", "twin", "policy_host", "steps", "dashboard", "extender", "api", "cli",
)  # fmt: skip


def run(name: str, root: Path) -> tuple[list[object], bool]:
    """Run one benchmark of a checkout; return its rows, none if it broke off, and whether all bars are met."""
    progress(f"{name}:")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--json", path], cwd=root, check=False)
        rows = json.loads(path.read_text(encoding="utf-8"))["results"][name] if path.exists() else []
    return rows, done.returncode == 0


def main(names: Sequence[str] = NAMES, root: Path = ROOT, results_file: Path = RESULTS) -> None:
    """Run all, write the results, and exit 1 if a bar was missed or a benchmark broke off."""
    stamp = stamp_of_run()
    results = {name: run(name, root) for name in names}
    write_results(results_file, stamp, {name: rows for name, (rows, _) in results.items() if rows})
    failed = [name for name, (_, ok) in results.items() if not ok]
    if failed:
        progress(f"missed a bar or broke off: {', '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
