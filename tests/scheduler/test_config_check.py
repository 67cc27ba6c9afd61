"""`longshore config check` says all that is wrong at once, and starts nothing."""

import json
from pathlib import Path

import pytest

from longshore.cluster.files.errors import LongshoreError
from longshore.scheduler.serve.config_check import check, summary
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import read_settings
from tests.scheduler.served import LONGSHORE
from tests.support import processes

ROOT = Path(__file__).parent.parent.parent


def wrong_in(folder: Path, text: str) -> list[str]:
    path = folder / "c.yaml"
    path.write_text(text)
    before = sorted(folder.rglob("*"))
    found = [str(each).removeprefix(f"{folder}/") for each in check(path).problems]
    assert sorted(folder.rglob("*")) == before
    return found


def test_the_example_is_right_and_is_summed_up() -> None:
    line = [*LONGSHORE, "config", "check", "examples/longshore.yaml"]
    done = processes.run(line, cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "64 GPUs on 8 nodes" in done.stdout
    assert "policy: patient; order shortest" in done.stdout
    assert "serves at 127.0.0.1:8765\n" in done.stdout


def test_a_policy_that_was_trained_under_another_regime_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"

    def remarks(policy: str, regime: str) -> list[str]:
        path.write_text(f"folder: {tmp_path / 'f'}\npolicy: {{name: {ROOT / 'checkpoints' / policy}}}\n{regime}")
        return [line for line in summary(check(path)) if "it was trained" in line]

    (remark,) = remarks("traces.zip", "order: easy\nageing_s: .inf")
    assert "ageing after 168 h (here no ageing)" in remark
    assert "order" not in remark
    assert remarks("traces.zip", "order: easy") == []
    (remark,) = remarks("hetero64.zip", "")
    assert "order fifo (here order shortest)" in remark


def test_all_faults_are_reported_each_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\nnode_types: {}\nracks: []\n")  # both are to hold something
    text = (
        "port: 70000\norder: random\nbackend:\n  name: locl\npolicy:\n  name: no-such-policy\n  fallback: patience\n"
        "cluster: bad.yaml\nstore: mysql://x\nretention: {jobs_days: 0}\npol: 3\n"
    )
    found = wrong_in(tmp_path, text)
    places = [each.split(": ")[0] for each in found]
    assert places == [
        "c.yaml:1:port", "c.yaml:2:order", "c.yaml:10:retention.jobs_days", "c.yaml:11:pol", "c.yaml:4:backend.name",
        "bad.yaml:2:node_types", "bad.yaml:3:racks", "c.yaml:7:policy.fallback", "c.yaml:6:policy.name",
        "c.yaml:9:store",
    ]  # fmt: skip
    assert "did you mean 'local'?" in found[4]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [\n", "c.yaml:"),
        ("", "c.yaml: the file is empty"),
        ("backend: {name: slurm, settings: {partitoin: x}}\n", "c.yaml:1:backend.settings.partitoin"),
        ("backend: {name: local, settings: {x: 1}}\n", "c.yaml:1:backend.settings.x"),
        ("cluster: gone.yaml\n", "gone.yaml: cannot be read"),
        ("\nfolder: c.yaml\n", "c.yaml:2:folder"),
        ("policy: {name: gone.zip}\n", "c.yaml:1:policy.name"),
        ("store: 'sqlite:///x.db?durability=hard'\n", "c.yaml:1:store"),
        ("store: 'sqlite://'\n", "c.yaml:1:store"),
        ("store: 'rubbish'\n", "c.yaml:1:store"),
        ("store: 'sqlite:////nowhere/x.db'\n", "c.yaml:1:store: /nowhere/x.db: the folder does not exist"),
        ("host: 0.0.0.0\nopen: true\n", "c.yaml:2:open: host 0.0.0.0 lets other machines run programs here"),
        ("folder: c.yaml/below\n", "c.yaml:1:folder"),
    ],
)
def test_each_kind_of_fault_is_found_and_no_other(tmp_path: Path, text: str, place: str) -> None:
    (found,) = wrong_in(tmp_path, text)
    assert found.startswith(place)


@pytest.mark.parametrize(
    "text",
    ["1: 2\n", "null: 2\n", "a.b: 1\n", f"{'x' * 600}: 1\n", "".join(f"x{i}: 1\n" for i in range(40)), "[1, 2]: 3\n"],
    ids=["a number", "nothing", "a point", "too long", "too many", "a list"],
)
def test_what_no_setting_is_called_is_refused_and_nothing_else(tmp_path: Path, text: str) -> None:
    assert wrong_in(tmp_path, text)
    wrong_in(tmp_path, f"port: 70000\n{text}")


def test_the_cluster_file_in_the_folder_is_looked_through_too(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("name: x\n")
    found = wrong_in(tmp_path, "folder: .\n")
    assert found
    assert all(it.startswith("cluster.yaml") for it in found)


@pytest.mark.parametrize(
    "settings",
    [
        {"open": True, "host": "0.0.0.0"},
        {"store": "sqlite:////nowhere/x.db"},
        {"folder": "c.yaml/below"},
        {"backend": {"name": "local", "settings": {"x": 1}}},
    ],
)
def test_what_serve_refuses_is_reported_by_the_check_in_the_same_words(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"folder": "served", "as_root": True, **settings}))
    (reported,) = check(path).problems

    with pytest.raises(LongshoreError) as refused:
        Service(read_settings(path))

    if "folder" not in settings:  # there the system says why
        assert str(refused.value).partition(";")[0] in str(reported)


@pytest.mark.full
def test_a_file_with_faults_ends_with_status_2(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 0\nhost: ''\n")
    line = [*LONGSHORE, "config", "check", "c.yaml"]
    done = processes.run(line, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert [it.split(": ")[1] for it in done.stderr.splitlines()] == ["c.yaml:1:port", "c.yaml:2:host"]


def test_the_defaults_are_right_and_a_password_is_not_shown(tmp_path: Path) -> None:
    assert check(None).problems == []
    path = tmp_path / "c.yaml"
    path.write_text("store: postgresql://me:secret@db/x\nhost: 0.0.0.0\n")
    reported = "\n".join(summary(check(path)))
    assert "secret" not in reported
    assert "make a token first" in reported
    assert check(path).settings == read_settings(path).settings
