"""Folders and stores that are not there, or cannot be used, named on the command line."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longshore.cli import app
from longshore.cluster.files.errors import InputError, LongshoreError
from longshore.scheduler.serve.config_check import check
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions
from longshore.scheduler.store.copying import back_up
from longshore.scheduler.store.database import StoreError, open_store
from tests.command_line import command_of
from tests.scheduler.rights import as_nobody

TOKENS = (["token", "create", "laptop"], ["token", "list"], ["token", "revoke", "laptop"])


def call(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    if done.exit_code == 2:
        raise InputError(done.stderr)
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
    (reported,) = json.loads(call("token", "list", "--json", *folder))
    assert (reported["owner"], reported["name"], reported["role"], reported["node"]) == ("local", "n1", "agent", "n1")
    assert "digest" not in reported
    assert call("token", "revoke", "n1", *folder) == "revoked\n"
    assert "revoked" in call("token", "list", *folder)
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
        Service(ServeOptions(SchedulerSettings(folder=tmp_path / name)))

    assert "\n" not in str(error.value)


def test_a_cluster_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").symlink_to(tmp_path / "nowhere" / "cluster.yaml")

    with pytest.raises(InputError, match=r"cluster\.yaml: cannot be read: No such file or directory; check"):
        Service(ServeOptions(SchedulerSettings(folder=tmp_path)))


IN_CLOSED = (
    ["store", "backup", "copy.db", "--folder", "closed/below"],
    ["store", "backup", "copy.db", "--folder", "closed"],
    ["store", "backup", "closed/copy.db", "--folder", "."],
    ["store", "restore", "closed/copy.db", "--folder", "."],
    ["store", "restore", "copy.db", "--folder", "closed"],
    ["store", "restore", "copy.db", "--folder", ".", "--store", "sqlite:///closed/longshore.db"],
    ["store", "prune", "--folder", "closed"],
    ["store", "prune", "--folder", ".", "--store", "sqlite:///closed/longshore.db"],
    ["token", "list", "--folder", "closed"],
    ["store", "decisions", "--out", "out.jsonl", "--folder", "closed"],
    ["submit", "closed/job.yaml"],
)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that anybody may look into, and write into, with one in it that nobody may look into."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        here.chmod(0o777)
        monkeypatch.chdir(here)
        closed = here / "closed"
        closed.mkdir()
        for folder in (here, closed):
            open_store(f"sqlite:///{folder / 'longshore.db'}").close()
        back_up(here / "longshore.db", here / "copy.db")
        (here / "copy.db").chmod(0o666)
        (closed / "job.yaml").write_text("command: [true]\n")
        closed.chmod(0)
        yield here
        closed.chmod(0o700)


def refused(*words: str) -> str:
    with pytest.raises(LongshoreError) as error:
        call(*words)
    return str(error.value)


@pytest.mark.parametrize("words", IN_CLOSED)
def test_a_place_that_may_not_be_looked_into_is_one_line(here: Path, words: list[str]) -> None:
    command_of(words)  # loads what only root may read
    call("submit", "--help")
    with as_nobody():
        problem = refused(*words)

    # The first is what the command line says by itself; it asks for the rights of who started root's process.
    assert re.search(r"path 'closed' is not readable|^\S*closed\S* cannot be (read|written): Permission", problem)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("folder: closed/below", "folder"),
        ("folder: closed", "folder"),
        ("cluster: closed/cluster.yaml", ""),
        ("store: sqlite:///closed/below/x.db", "store"),
        ("policy: {name: closed/x.zip}", "policy.name"),
        ("policy: {name: closed/x}", "policy.name"),
    ],
)
def test_a_configuration_that_names_such_a_place_is_reported_with_its_line(here: Path, text: str, place: str) -> None:
    file = here / "c.yaml"
    file.write_text(f"{text}\n")
    file.chmod(0o644)
    check(file)
    with as_nobody():
        reported = [str(it) for it in check(file).problems]

    assert len(reported) == 1
    assert f"{file}:1:{place}: " in reported[0] if place else "closed/cluster.yaml: cannot be read" in reported[0]
    assert "Permission denied" in reported[0]


@pytest.mark.parametrize("changes", [{"folder": "closed"}, {"folder": "full"}, {"store": "sqlite:///full/x.db"}])
def test_a_scheduler_in_such_a_place_is_refused_in_one_line(here: Path, changes: dict[str, str]) -> None:
    (here / "full").mkdir(mode=0o555)
    with as_nobody(), pytest.raises(LongshoreError) as error:
        Service(ServeOptions(SchedulerSettings.model_validate({"folder": "served", **changes})))

    assert "Permission denied" in str(error.value)
