import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from longshore.cluster.files.errors import InputError, PluginError
from longshore.cluster.traces.detect import detect_format, load_format, read_trace, registered_formats
from tests.cluster.traces.small_traces import EXAMPLES, written

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
    assert registered_formats() == declared


def test_an_unknown_format_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(PluginError, match="no trace format is called 'helio'; did you mean 'helios'"):
        load_format("helio")
    with pytest.raises(PluginError, match="there are acme, helios"):
        load_format("zzzz")


def test_a_file_in_no_format_is_answered_with_the_formats(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'x,y'; formats are acme, .*, swf; see"):
        read_trace(written(tmp_path, "x,y\n1,2\n"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_two_formats_claim_one_file(name: str) -> None:
    head = EXAMPLES[name][0][:4096]
    assert [other for other in registered_formats() if load_format(other).sniff(head)] == [name]


def test_a_file_that_fits_two_formats_has_to_be_named(tmp_path: Path) -> None:
    formats = {"one": "longshore.cluster.traces.formats.itp", "two": "longshore.cluster.traces.formats.itp"}
    path = written(tmp_path, EXAMPLES["itp"][0])
    with pytest.raises(InputError, match="fits several formats: one, two"):
        detect_format(path, formats)
    assert read_trace(path, trace_format="two", formats=formats).jobs == 2


def test_a_format_from_another_package_is_found_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger.py").write_text(
        "from longshore.cluster.traces.formats import itp\n"
        "def sniff(head): return head.startswith('%stranger')\n"
        "def read(path): return itp.read(path.with_suffix('.csv'))\n"
    )
    (tmp_path / "jobs.csv").write_text(EXAMPLES["itp"][0])
    (tmp_path / "jobs.strange").write_text("%stranger\n")
    monkeypatch.syspath_prepend(tmp_path)
    formats = registered_formats() | {"stranger": "stranger"}
    assert detect_format(tmp_path / "jobs.strange", formats) == "stranger"
    assert read_trace(tmp_path / "jobs.strange", formats=formats).jobs == 2


def test_a_format_that_does_not_do_its_part_is_a_plugin_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("broken_format")
    monkeypatch.setitem(sys.modules, "broken_format", module)
    formats = {"broken": "broken_format", "absent": "no_such_module"}
    with pytest.raises(PluginError, match="does not import"):
        load_format("absent", formats)
    with pytest.raises(PluginError, match="no function sniff"):
        load_format("broken", formats)
    module.__dict__.update(sniff=lambda head: True, read=lambda path: [])
    with pytest.raises(PluginError, match="gave list, not a Workload"):
        read_trace(written(tmp_path, "x"), trace_format="broken", formats=formats)


@pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real traces, ../shared/data, is not here")
@pytest.mark.parametrize("name", REAL)
def test_a_real_trace_is_recognised_and_read_whole(name: str) -> None:
    workload = read_trace(DATA / name)
    assert (detect_format(DATA / name), workload.jobs, workload.left_out) == REAL[name]
