"""What anybody writes into a node's reason, or a job's comment, hides no other node or job of Slurm."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.slurm.commands import SlurmSnapshot, _read_snapshot

TEXTS = st.text("ab| \n\r\x0b\x0c\x1c\x85\u2028\t*+", max_size=20)


def snapshot(squeue: str, sinfo: str) -> SlurmSnapshot:
    def call(name: str, _arguments: Sequence[str]) -> str:
        return {"squeue": squeue, "sinfo": sinfo}[name]

    commands: Any = SimpleNamespace(call=call)
    return _read_snapshot(commands)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.lists(TEXTS, min_size=1, max_size=4))
def test_all_nodes_and_jobs_are_read(comments: list[str], reasons: list[str]) -> None:
    squeue = "".join(f"{number}|RUNNING|{text}\n" for number, text in enumerate(comments, 1))
    sinfo = "".join(f"n{number}|h{number}|gpu:i0:1|IDLE|{text}\n" for number, text in enumerate(reasons))
    found = snapshot(squeue, sinfo)
    assert sorted(job.number for jobs in found.jobs.values() for job in jobs) == list(range(1, len(comments) + 1))
    for number in range(len(reasons)):
        assert found.nodes[f"n{number}"].address == f"h{number}"


@pytest.mark.parametrize(("squeue", "sinfo"), [("what\n", ""), ("", "n0|h0|IDLE\n"), ("x|RUNNING|a\n", "")])
def test_an_output_of_another_form_is_an_error(squeue: str, sinfo: str) -> None:
    with pytest.raises(BackendError):
        snapshot(squeue, sinfo)
