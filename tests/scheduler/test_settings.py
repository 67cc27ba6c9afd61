"""The configuration file."""

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import rules_stopping_at_faults
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.access.token_file import is_loopback
from longshore.scheduler.backends.building import build
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.placement.placer import Mode
from longshore.scheduler.service.own_cluster import QUICKSTART
from longshore.scheduler.service.service import Service, site_of
from longshore.scheduler.settings import PolicyChoice, SchedulerSettings, ServeOptions, default_store_url, read_settings
from longshore.scheduler.store.database import file_of, open_store

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "longshore.yaml"


def fields(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        kind = field.annotation
        inner = isinstance(kind, type) and issubclass(kind, BaseModel)
        found |= fields(kind, f"{prefix}{name}.") if inner else {f"{prefix}{name}"}  # type: ignore[arg-type]
    return found


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        Service(read_settings(path))
    return str(error.value).removeprefix(f"{tmp_path}/")


def test_the_example_has_every_field_with_its_default() -> None:
    text = re.sub(r"^( *)# (\w+: )", r"\1\2", EXAMPLE.read_text(), flags=re.MULTILINE)
    named = {
        f"{name}.{inner}" if isinstance(value, dict) else name
        for name, value in yaml.safe_load(text).items()
        for inner in (value if isinstance(value, dict) else [""])
    }
    found = read_settings(EXAMPLE).settings

    assert named == fields(SchedulerSettings)
    assert found.model_copy(update={"cluster": None, "folder": SchedulerSettings().folder}) == SchedulerSettings()
    assert found.cluster == ROOT / "examples" / "small.yaml"
    assert found.folder == ROOT / "examples" / ".longshore"


def test_the_page_on_the_configuration_has_every_field_and_no_other() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()

    assert set(re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE)) == fields(SchedulerSettings)


def test_modes_are_those_of_the_scheduler() -> None:
    assert set(get_args(PolicyChoice.model_fields["mode"].annotation)) == set(Mode)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("ordr: easy\n", "c.yaml:1:ordr: unknown key; did you mean 'order'?"),
        ("port: 1\norder: best\n", "c.yaml:2:order: 'best' cannot be used; it should be easy, easy-shortest, "),
        ("policy:\n  deadline_s: .nan\n", "c.yaml:2:policy.deadline_s: '.nan' cannot be used; "),
        ("policy:\n  deadlin_s: 1\n", "c.yaml:2:policy.deadlin_s: unknown key; did you mean 'deadline_s'?"),
        ("backend:\n  name: locl\n", "c.yaml:2:backend.name: there is no backend 'locl'; did you mean 'local'?"),
        ("backend:\n  settings:\n    x: 1\n", "c.yaml:3:backend.settings.x: unknown key; "),
        ("host: 0.0.0.0\nopen: true\n", "host 0.0.0.0 lets other machines run programs here, and an open scheduler "),
        ("store: mysql://x\n", ""),
    ],
)
def test_what_cannot_be_used_is_one_line_with_its_place(tmp_path: Path, text: str, reported: str) -> None:
    if text.startswith("store"):
        with pytest.raises(Exception, match="a store cannot be in 'mysql'"):
            Service(ServeOptions(SchedulerSettings(folder=tmp_path, store="mysql://x")))
        return
    message = refused(tmp_path, text)

    assert message.startswith(reported)
    assert "\n" not in message


def test_settings_of_a_backend_without_a_file_name_their_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^backend.settings.x: unknown key; drop it"):
        build("local", {"x": 1}, tmp_path, Layout(["a"], [1]))


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("", False),
     ("::", False), ("10.0.0.1", False), ("localhost.evil.example", False)],
)  # fmt: skip
def test_only_this_machine_is_loopback(host: str, is_local: bool) -> None:  # noqa: FBT001
    assert is_loopback(host) is is_local


def test_the_quickstarts_cluster_is_the_one_that_is_made_up_where_none_is_given() -> None:
    assert (EXAMPLE.parent / "quickstart" / "cluster.yaml").read_text() == QUICKSTART


def test_a_live_cluster_follows_no_rule_of_what_simulated_jobs_do_at_a_fault() -> None:
    setup = read_cluster(ROOT / "examples" / "switching.yaml")
    assert setup.rules.switching
    rules = site_of(setup, SchedulerSettings()).rules
    assert rules == rules_stopping_at_faults(rules)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("mine.zip", "HOME/mine.zip"),
        ("runs/../mine.zip", "HOME/runs/../mine.zip"),
        ("/srv/mine.zip", "/srv/mine.zip"),
        ("rollout:mine.zip@20ms,h16", "rollout:HOME/mine.zip@20ms,h16"),
        ("rollout:rollout:mine.zip@h2@h3", "rollout:rollout:HOME/mine.zip@h2@h3"),
        ("patient@0.8", "patient@0.8"),
        ("rollout:patient@20ms", "rollout:patient@20ms"),
    ],
)
def test_paths_start_from_the_folder_of_the_file(name: str, read: str, tmp_path: Path) -> None:
    path = tmp_path / "longshore.yaml"
    path.write_text(f"folder: here\ncluster: c.yaml\npolicy: {{name: '{name}'}}\npreflight: {{wiring: w.yaml}}\n")
    found = read_settings(path).settings
    assert found.policy.name == read.replace("HOME", str(tmp_path))
    assert (found.folder, found.cluster) == (tmp_path / "here", tmp_path / "c.yaml")
    assert found.preflight.wiring == tmp_path / "w.yaml"


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("sqlite:///jobs.db", "sqlite:///HOME/jobs.db"),
        ("sqlite:///a/../jobs.db?durability=full", "sqlite:///HOME/a/../jobs.db?durability=full"),
        ("sqlite:////srv/jobs.db", "sqlite:////srv/jobs.db"),
        ("postgresql://ada@db/jobs", "postgresql://ada@db/jobs"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
    ],
)
def test_a_store_that_is_a_file_starts_from_the_folder_of_the_file(url: str, read: str, tmp_path: Path) -> None:
    path = tmp_path / "longshore.yaml"
    path.write_text(f"store: '{url}'\n")
    assert read_settings(path).settings.store == read.replace("HOME", str(tmp_path))


ODD_NAMES = ["a?b", "a?c", "exp%20a", "exp a", "a#b", "a&b=c", "a:b@c", "100%", "ä"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_of_any_name_has_the_store_in_it(name: str, tmp_path: Path) -> None:
    home = tmp_path / name
    home.mkdir()
    (home / "longshore.yaml").write_text("store: 'sqlite:///jobs.db?durability=full'\nfolder: it\n")

    found = read_settings(home / "longshore.yaml").settings

    assert file_of(default_store_url(home)) == home / "longshore.db"
    assert file_of(found.store_url) == home / "jobs.db"
    assert file_of(found.model_copy(update={"store": None}).store_url) == home / "it" / "longshore.db"
    open_store(default_store_url(home)).close()
    assert sorted(path.name for path in home.glob("*.db")) == ["longshore.db"]
