"""What the job asks Slurm for that ends what is left of an attempt on a node."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.cluster.files.durable import make_folder, open_folder
from longshore.scheduler.backends.local.ranks import RankPlace, Spec, encode_spec
from longshore.scheduler.backends.slurm.commands import SlurmNode, SlurmSnapshot
from longshore.scheduler.backends.slurm.submission import Cleanup

NAME = "ls-job-1"
GIB = 1 << 30
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@pytest.mark.parametrize("limit_s", [None, 1e6])
@pytest.mark.parametrize("nodes", [("a",), ("a", "b")])
def test_it_asks_for_a_small_part_of_a_node_whatever_slurm_gives_by_default(
    nodes: tuple[str, ...], limit_s: float | None, tmp_path: Path
) -> None:
    ranks = tuple(RankPlace(node, gpu) for node in nodes for gpu in range(4))
    (tmp_path / "spec.json").write_bytes(encode_spec(Spec(NAME, "job", 1, ("true",), "/", {}, 600.0, limit_s, ranks)))
    folder = open_folder(str(tmp_path))
    for part in range(len(nodes)):
        make_folder(folder, f"part-{part}")
        (tmp_path / f"part-{part}" / "started.json").write_text("{}")
    asked = list[Sequence[str]]()

    def call(name: str, arguments: Sequence[str], _stdin: str) -> str:
        assert name == "sbatch"
        asked.append(arguments)
        return "1"

    commands: Any = SimpleNamespace(call=call)
    cleanup = Cleanup(commands, ["--partition=main"])
    known = {node: SlurmNode(node, {}, "IDLE", "") for node in nodes}
    for read_s in (0.0, float("inf")):  # the first snapshot may be older than the job
        cleanup.sweep(folder, str(tmp_path), list(enumerate(nodes)), SlurmSnapshot(read_s, {}, known))
    os.close(folder)

    assert len(asked) == len(nodes)
    for node, arguments in zip(nodes, asked, strict=True):
        options = dict(argument.partition("=")[::2] for argument in arguments)
        memory = options["--mem"]
        assert (options["--nodelist"], options["--partition"]) == (node, "main")
        assert 0 < int(memory[:-1]) * UNITS[memory[-1]] <= GIB / 4  # 0 is Slurm's word for all of it
        assert (options["--nodes"], options["--ntasks"], options["--cpus-per-task"]) == ("1", "1", "1")
        assert int(options["--time"]) <= 60
        assert "--gres" not in options
