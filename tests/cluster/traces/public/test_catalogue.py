"""The table of public traces."""

import hashlib
import json
from pathlib import Path

import pytest

from longshore.cluster.traces.download import read_catalogue
from tests.cluster.traces.public.download_runs import CSV, refused, row
from tests.command_line import Command

SHARED = Path(__file__).parents[4] / ".." / "shared" / "data"


def test_all_traces_are_listed_with_their_licences(longshore: Command) -> None:
    done = longshore("trace", "list")
    assert done.status == 0
    for trace in read_catalogue().values():
        assert trace.name in done.out
        assert trace.licence.split()[0] in done.out
    assert longshore("trace", "download").out == done.out


def test_a_name_that_is_nearly_right_is_put_right(longshore: Command) -> None:
    assert "philly_vc_2869ce" in refused(longshore("trace", "download", "philly_vc_2869"))


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "0"}, {"saved_as": "../x"}, {"saved_as": "a/b"}, {"repository": "x"}, {"size_bytes": 0},
        {"licence": ""}, {"commit": "main"}, {"path": "a b"}, {"more": 1}, {"name": None},
    ],
)  # fmt: skip
def test_a_catalogue_with_a_row_that_makes_no_sense_is_refused(longshore: Command, change: dict[str, object]) -> None:
    Path("catalogue.json").write_text(json.dumps([row(CSV) | change]))
    assert next(iter(change)) in refused(longshore("trace", "list", "--catalogue", "catalogue.json"))


def test_a_catalogue_with_a_name_twice_is_refused(longshore: Command) -> None:
    Path("catalogue.json").write_text(json.dumps([row(CSV), row(CSV)]))
    assert "twice" in refused(longshore("trace", "list", "--catalogue", "catalogue.json"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces in ../shared/data are absent")
def test_the_catalogue_pins_the_files_that_we_use() -> None:
    files = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in SHARED.rglob("*.*")}
    for trace in read_catalogue().values():
        if trace.members is None:
            assert files[trace.sha256].stat().st_size == trace.size_bytes
