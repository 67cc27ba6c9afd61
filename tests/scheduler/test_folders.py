"""Folders and stores that are not there, or cannot be used, named on the command line."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longshore.cli import app
from longshore.cluster.errors import InputError
from longshore.scheduler.service import Service
from longshore.scheduler.settings import Chosen, Settings
from longshore.scheduler.store.errors import StoreError
from longshore.scheduler.store.opening import open_store

TOKENS = (["token", "create", "laptop"], ["token", "list"], ["token", "revoke", "laptop"])


def call(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


@pytest.mark.parametrize("words", TOKENS)
@pytest.mark.parametrize("where", ["--folder", "--store"])
def test_tokens_of_a_store_that_is_not_there_are_refused_and_nothing_is_made(
    tmp_path: Path, words: list[str], where: str
) -> None:
    (tmp_path / "empty").mkdir()
    before = set(tmp_path.rglob("*"))
    for name in ("typo", "empty"):
        place = str(tmp_path / name) if where == "--folder" else f"sqlite:///{tmp_path / name / 'store.db'}"

        with pytest.raises(InputError, match=re.escape(f"there is no store at {tmp_path / name}")):
            call(*words, where, place)

    assert set(tmp_path.rglob("*")) == before


def test_tokens_are_made_listed_and_revoked_in_a_store_that_is_there(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'longshore.db'}").close()
    folder = ["--folder", str(tmp_path)]

    assert call("token", "create", "n1", "--role", "agent", "--node", "n1", *folder).startswith("ls_")
    assert re.search(r"local +n1 +agent +n1 +never +never\n", call("token", "list", *folder))
    (told,) = json.loads(call("token", "list", "--json", *folder))
    assert (told["owner"], told["name"], told["role"], told["node"]) == ("local", "n1", "agent", "n1")
    assert "digest" not in told
    assert call("token", "revoke", "n1", *folder) == "revoked\n"
    assert "expired" in call("token", "list", *folder)
    with pytest.raises(InputError, match="an agent's token is for one node; name it: --node NODE"):
        call("token", "create", "n2", "--role", "agent", *folder)


def test_what_is_no_url_of_a_store_is_said_so() -> None:
    with pytest.raises(StoreError, match="'nothing' is no URL of a store"):
        call("token", "list", "--store", "nothing")


@pytest.mark.parametrize("name", ["file", "file/below", "dangling", "long/" + "x" * 300, "/proc/nobody"])
def test_a_folder_that_cannot_be_one_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    with pytest.raises(
        InputError, match=rf"^folder {re.escape(str(tmp_path / name))} cannot be used: .+; choose"
    ) as error:
        Service(Chosen(Settings(folder=tmp_path / name)))

    assert "\n" not in str(error.value)


def test_a_cluster_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").symlink_to(tmp_path / "nowhere" / "cluster.yaml")

    with pytest.raises(InputError, match=r"cluster\.yaml cannot be written: No such file or directory; choose"):
        Service(Chosen(Settings(folder=tmp_path)))
