"""The examples of docs/environments.md for researchers work as described."""

import re
from pathlib import Path

import pytest

from longshore.agents.registry import find_policy
from tests.command_line import Command

ENVIRONMENTS = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
PAGE = ENVIRONMENTS.split("\n## For researchers\n")[1].split("\n## ")[0]
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.usefixtures("one_thread")
def test_a_network_of_ones_own_is_trained_in_forty_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], longshore: Command
) -> None:
    code = [line for line in EXAMPLE.splitlines() if line.strip()]
    assert len(code) <= 40
    monkeypatch.chdir(tmp_path)
    less = EXAMPLE
    for usual, small in (("200_000", "64"), ("1000)", "8)"), ("rows=64", "rows=4"), ("n_steps=64", "n_steps=16"),
                         ("batch_size=1024", "batch_size=64"), ("200, seed", "3, seed")):  # fmt: skip
        assert usual in less
        less = less.replace(usual, small)
    exec(compile(less, "research.py", "exec"), {"__name__": "research"})
    assert (tmp_path / "model.zip").is_file()
    assert "of the makespan of" in capsys.readouterr().out
    (imports,) = re.findall(r"^ {4}longshore (policy import .*)$", PAGE, re.MULTILINE)
    refused = longshore(*imports.split())
    assert (refused.status, "SB3Policy(model)" in refused.err) == (2, True)
    plain = re.sub(r"    policy_kwargs=.*\n", "", less)
    assert plain != less
    exec(compile(plain, "research.py", "exec"), {"__name__": "research"})
    assert longshore(*imports.split()).status == 0
    assert find_policy("policy.zip").name == "policy"
