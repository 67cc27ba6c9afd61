"""How the ring of a job is shown to people."""

from typing import Any

import pytest

from longshore.scheduler.commands.jobs import print_ring

RING: dict[str, Any] = {
    "phase": "running", "generation": 2, "seats": 2, "step": 7, "order": [0, 2], "spares": [], "relieved": [1],
    "gone": {}, "recoveries": [], "hints": [], "members": [],
}  # fmt: skip
CAME: dict[str, Any] = {"rank": 2, "node": "b", "gpu": 0, "candidates": [], "average_s": 0.0}


@pytest.mark.parametrize(
    ("backup_for", "words"), [(None, "as rank 2, for an empty seat"), (1, "as rank 2, as the backup of member 1")]
)
def test_slow_members_and_what_a_gpu_joined_for_are_shown(
    backup_for: int | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_ring({**RING, "replacements": [{**CAME, "backup_for": backup_for}]})
    shown = capsys.readouterr().out
    assert "slow       1\n" in shown
    assert words in shown
