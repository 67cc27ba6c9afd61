"""Everything that packages register is found in one way."""

from pathlib import Path

import pytest

from longshore.cluster.files.errors import PluginError
from longshore.cluster.files.plugins import SEAMS, load, registered
from longshore.cluster.files.signals import SigtermExit, unwound_by_signals
from tests.packages import install


@pytest.mark.parametrize("seam", SEAMS)
def test_what_the_project_registers_can_be_imported(seam: str) -> None:
    assert list(registered(seam)) == sorted(registered(seam))
    for name in registered(seam):
        assert load(seam, name) is not None


@pytest.mark.parametrize("seam", SEAMS)
def test_names_are_known_without_an_import(seam: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(registered(seam))
    text = "raise RuntimeError('imported')"
    install(tmp_path / "theirs", monkeypatch, seam, {"a-strange-one": "theirs_module:THING"}, theirs_module=text)
    assert set(registered(seam)) == before | {"a-strange-one"}
    with pytest.raises(PluginError, match=rf"{SEAMS[seam]} 'a-strange-one' \(theirs_module:THING\) .* imported"):
        load(seam, "a-strange-one")
    with pytest.raises(PluginError, match=f"there is no {SEAMS[seam]} 'a-strange-on'; did you mean 'a-strange-one'"):
        load(seam, "a-strange-on")


def test_one_name_for_two_things_is_refused_only_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "one", monkeypatch, "policies", {"twice": "one_module:THING", "once": "one_module:THING"},
            one_module="THING = 1")  # fmt: skip
    install(tmp_path / "two", monkeypatch, "policies", {"twice": "two_module:THING"}, two_module="THING = 2")
    assert load("policies", "once") == 1
    with pytest.raises(PluginError, match=r"policy 'twice' is both \w+:THING and \w+:THING; uninstall one"):
        load("policies", "twice")


def test_the_same_registration_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):  # as an editable install and a build folder on the path are
        install(tmp_path / folder, monkeypatch, "policies", {"mine": "my_module:THING"}, my_module="THING = 1")
    assert load("policies", "mine") == 1


def test_ours_keep_their_names_whatever_else_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load("networks", "set")
    install(tmp_path / "theirs", monkeypatch, "networks", {"set": "theirs_module:THING"}, theirs_module="THING = 1")
    assert load("networks", "set") is before


def test_a_module_that_ends_the_process_is_an_error_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "theirs", monkeypatch, "policies", {"rude": "rude_module:THING"},
            rude_module="import sys; sys.exit(3)")  # fmt: skip
    with pytest.raises(PluginError, match="rude"):
        load("policies", "rude")


def test_a_signal_while_a_module_is_imported_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "theirs", monkeypatch, "policies", {"slow": "slow_module:THING"},
            slow_module="import os, signal; os.kill(os.getpid(), signal.SIGTERM)")  # fmt: skip
    with pytest.raises(SigtermExit), unwound_by_signals():
        load("policies", "slow")
