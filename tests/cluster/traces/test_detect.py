import re
import tomllib
from pathlib import Path

import pytest

from longshore.cluster.files.errors import InputError, PluginError
from longshore.cluster.files.plugins import registered
from longshore.cluster.traces.read import detect_format, format_description, load_format, read_trace
from tests.cluster.traces.small_traces import EXAMPLES, written
from tests.command_line import Command
from tests.packages import install

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data" / "traces"
REAL = {
    "itp_cluster03.csv": ("itp", 3011, 0),
    "itp_cluster06.csv": ("itp", 2396, 0),
    "itp_cluster10.csv": ("itp", 260, 0),
    "openb_pod_list_default.csv": ("openb", 6203, 1949),
    "philly_vc_2869ce.muri.csv": ("muri", 992, 0),
    "philly_vc_7f04ca.muri.csv": ("muri", 1494, 0),
}


def test_every_format_of_the_project_is_registered_under_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["longshore.traces"]
    assert set(EXAMPLES) == set(declared)
    assert {name: point.value for name, point in registered("traces").items()} == declared


def test_an_unknown_format_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(PluginError, match="there is no trace format 'helio'; did you mean 'helios'"):
        load_format("helio")
    with pytest.raises(PluginError, match="known: acme, helios"):
        load_format("zzzz")


def test_a_file_in_no_format_is_answered_with_the_formats(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'x,y'; formats are acme, .*, swf, tiresias; see"):
        read_trace(written(tmp_path, "x,y\n1,2\n"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_two_formats_claim_one_file(name: str) -> None:
    head = EXAMPLES[name][0][:4096]
    claim = [other for other in registered("traces") if load_format(other).sniff(head)]
    assert claim == (["muri", "tiresias"] if name == "tiresias" else [name])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_format_says_how_it_has_times(name: str) -> None:
    assert re.search(r"\(times (in seconds|in milliseconds|as dates)", format_description(name))


def test_a_file_whose_times_may_be_seconds_or_milliseconds_has_to_be_named(tmp_path: Path) -> None:
    path = written(tmp_path, EXAMPLES["tiresias"][0])
    with pytest.raises(InputError, match=r"muri \(times in milliseconds\), tiresias \(times in seconds\)"):
        read_trace(path)
    assert read_trace(path, trace_format="tiresias").work_s.tolist() == [3600.0, 120.0]


def test_what_a_file_was_taken_for_is_told_once_by_every_command(tmp_path: Path, longshore: Command) -> None:
    path = written(tmp_path, EXAMPLES["muri"][0])
    for line in (["inspect", path], ["convert", path, tmp_path / "out.csv"], ["sample", path, tmp_path / "o.csv"]):
        done = longshore("trace", *line, *(["--jobs", "1"] if line[0] == "sample" else []))
        assert done.status == 0
        assert done.err.count("muri (times in milliseconds)") == 1
    done = longshore("trace", "inspect", "--format", "muri", written(tmp_path, EXAMPLES["tiresias"][0]))
    assert done.status == 2
    assert "muri (times in milliseconds)" in done.err


def test_a_file_that_fits_two_formats_has_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "theirs", monkeypatch, "traces", {"two": "longshore.cluster.traces.formats:ITP"})
    path = written(tmp_path, EXAMPLES["itp"][0])
    with pytest.raises(InputError, match=r"fits several formats: itp .*, two"):
        detect_format(path)
    assert read_trace(path, trace_format="two").jobs == 2


def test_a_format_from_another_package_is_found_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "from longshore.cluster.traces.formats import ITP\n"
        "def sniff(head): return head.startswith('%stranger')\n"
        "def read(path): return ITP.read(path.with_suffix('.csv'))\n"
    )
    install(tmp_path / "theirs", monkeypatch, "traces", {"strange": "stranger"}, stranger=text)
    (tmp_path / "jobs.csv").write_text(EXAMPLES["itp"][0])
    (tmp_path / "jobs.strange").write_text("%stranger\n")
    assert detect_format(tmp_path / "jobs.strange") == "strange"
    assert read_trace(tmp_path / "jobs.strange").jobs == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise OSError('no disk')", "cannot be imported: no disk"),
        ("", "has no function sniff"),
        ("def sniff(head): return True", "has no function read"),
        ("def sniff(head): return True\ndef read(path): return []", "gave list, not a Workload"),
    ],
)
def test_a_format_that_does_not_do_its_part_is_a_plugin_error(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "theirs", monkeypatch, "traces", {"broken": "broken_format"}, broken_format=text)
    with pytest.raises(PluginError, match=problem):
        read_trace(written(tmp_path, "x"), trace_format="broken")


@pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real traces, ../shared/data, is not here")
@pytest.mark.parametrize("name", REAL)
def test_a_real_trace_is_recognised_and_read_whole(name: str) -> None:
    workload = read_trace(DATA / name)
    assert (detect_format(DATA / name), workload.jobs, workload.left_out) == REAL[name]
