"""`longshore trace download` as a user calls it, against a server that misbehaves."""

import fcntl
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from longshore.cluster.traces.download import MAX_FRUITLESS_TRIES
from tests.cluster.traces.public.download_runs import CSV, Download, left, refused
from tests.command_line import Command, Done
from tests.support import processes


def test_a_trace_comes_whole_with_its_licence_and_can_be_used(longshore: Command, download: Download) -> None:
    done = download()
    assert done.status == 0, done.err
    assert "licence: CC-BY-4.0 (somebody/traces)" in done.out
    assert Path("small.csv").read_bytes() == CSV
    assert left() == {"small.csv"}
    commit = download.row["commit"]
    assert download.server.asked == [(f"/somebody/traces/{commit}/data/small.csv", None)]
    assert longshore("trace", "inspect", "small.csv").status == 0


def test_one_that_is_there_is_only_checked_and_needs_no_server(longshore: Command, download: Download) -> None:
    Path("small.csv").write_bytes(CSV)
    done = download()
    assert done.status == 0
    assert "already there" in done.out
    assert download.server.asked == []


def test_something_else_that_stands_there_is_left_alone(download: Download) -> None:
    Path("small.csv").write_bytes(b"mine")
    assert "something else stands there" in refused(download())
    assert Path("small.csv").read_bytes() == b"mine"
    assert download.server.asked == []


@pytest.mark.parametrize("ways", [["cut:1000", "whole"], ["cut:1000", "cut:70000", "cut:0", "cut:0", "whole"]])
def test_a_connection_that_breaks_is_gone_on_with(download: Download, ways: list[str]) -> None:
    done = download(ways=ways)
    assert done.status == 0, done.err
    assert Path("small.csv").read_bytes() == CSV
    assert len(download.server.asked) == len(ways)
    assert download.server.asked[1][1] == "bytes=1000-"


def test_a_connection_that_falls_silent_is_gone_on_with(download: Download) -> None:
    done = download(ways=["hang:1000", "whole"], timeout=0.3)
    assert done.status == 0, done.err
    assert [asked for _, asked in download.server.asked] == [None, "bytes=1000-"]


def test_the_next_command_goes_on_where_one_broke_off(download: Download) -> None:
    assert "run the same command again" in refused(download(ways=["cut:5000", "cut:0"]))
    assert left() == {"small.csv.part"}
    done = download()
    assert done.status == 0, done.err
    assert download.server.asked[0][1] == "bytes=5000-"
    assert Path("small.csv").read_bytes() == CSV
    assert left() == {"small.csv"}


def test_a_server_that_cannot_go_on_begins_anew(download: Download) -> None:
    done = download(ways=["cut-no-range:5000", "whole-no-range"])
    assert done.status == 0, done.err
    assert Path("small.csv").read_bytes() == CSV


def test_a_server_that_always_breaks_at_one_byte_is_given_up(download: Download) -> None:
    refused(download(ways=["cut-no-range:5000"]))
    assert len(download.server.asked) == 1 + MAX_FRUITLESS_TRIES
    assert not Path("small.csv").exists()


@pytest.mark.parametrize("begun", [b"x" * 5000, b"x" * len(CSV), b"x" * (len(CSV) + 7), CSV[:-1] + b"x"])
def test_what_was_begun_with_other_bytes_is_fetched_anew(download: Download, begun: bytes) -> None:
    Path("small.csv.part").write_bytes(begun)
    done = download()
    assert done.status == 0, done.err
    assert Path("small.csv").read_bytes() == CSV


@pytest.mark.parametrize("size_bytes", [len(CSV), None])
def test_what_has_come_whole_only_has_to_be_put_in_place(download: Download, size_bytes: int | None) -> None:
    download.row["size_bytes"] = size_bytes
    Path("small.csv.part").write_bytes(CSV)
    assert download().status == 0
    assert download.server.asked == []
    assert left() == {"small.csv"}


def test_a_part_that_is_too_long_for_the_server_is_fetched_anew(download: Download) -> None:
    download.row["size_bytes"] = None
    Path("small.csv.part").write_bytes(CSV + b"x")
    done = download()
    assert done.status == 0, done.err
    assert [asked for _, asked in download.server.asked] == [f"bytes={len(CSV) + 1}-", None]


def test_a_server_that_sends_another_part_is_asked_from_the_beginning(download: Download) -> None:
    Path("small.csv.part").write_bytes(CSV[:5000])
    done = download(ways=["wrong-part", "whole"])
    assert done.status == 0, done.err
    assert [asked for _, asked in download.server.asked] == ["bytes=5000-", None]


@pytest.mark.parametrize("size_bytes", [len(CSV), None])
@pytest.mark.parametrize("way", ["whole", "unsized"])
def test_other_bytes_than_were_published_never_reach_the_target(
    download: Download, way: str, size_bytes: int | None
) -> None:
    download.row["size_bytes"] = size_bytes
    download.server.content = CSV[:-2] + b"X\n"
    assert "SHA-256" in refused(download(ways=[way]))
    assert left() == set()


@pytest.mark.parametrize("size_bytes", [len(CSV), None])
def test_a_body_without_a_length_is_taken(download: Download, size_bytes: int | None) -> None:
    download.row["size_bytes"] = size_bytes
    assert download(ways=["unsized"]).status == 0
    assert Path("small.csv").read_bytes() == CSV


@pytest.mark.parametrize(
    ("way", "problem"),
    [
        ("404", "404"),
        ("403", "403"),
        ("500", "500"),
        ("503", "503"),
        ("429", "429"),
        ("304", "304"),
        ("redirect:/again", "redirect"),
        ("redirect:ftp://127.0.0.1/x", "ftp"),
        ("redirect:http://[broken", "cannot be reached"),
        ("garbage", "connection broke"),
        ("packed", "packs the file"),
        ("endless", "sends more than"),
        ("hang", "nothing for 0.2 s"),
    ],
)
def test_a_server_that_misbehaves_is_one_line(download: Download, way: str, problem: str) -> None:
    message = refused(download(ways=[way], timeout=0.2))
    assert problem in message.lower()
    assert not Path("small.csv").exists()


@pytest.mark.parametrize("content", [CSV + b"more", CSV[:100], b""])
def test_a_file_of_another_length_is_refused_before_it_comes(download: Download, content: bytes) -> None:
    download.server.content = content
    assert "the server offers" in refused(download())
    assert left() == set()


def test_a_redirect_is_followed(download: Download) -> None:
    assert download(ways=[f"redirect:{download.server.url}/elsewhere", "whole"]).status == 0
    assert Path("small.csv").read_bytes() == CSV


def test_trouble_of_the_server_that_passes_is_waited_for(download: Download) -> None:
    assert download(ways=["503", "500", "whole"]).status == 0


def test_without_a_network_the_message_says_so(longshore: Command) -> None:
    message = refused(longshore("trace", "download", "faults", "--mirror", "http://127.0.0.1:1"))
    assert "cannot be reached" in message
    assert "--mirror" in message
    assert left() == set()


def test_a_network_that_goes_away_in_between_leaves_what_has_come(download: Download) -> None:
    Path("small.csv.part").write_bytes(CSV[:5000])
    message = refused(download("--mirror", "http://127.0.0.1:1"))
    assert "run the same command again" in message
    assert Path("small.csv.part").read_bytes() == CSV[:5000]


@pytest.mark.parametrize("mirror", ["nonsense", "http://", "http://[", "file:///tmp", "http://a\x00b"])
def test_a_mirror_that_is_no_url_is_one_line(longshore: Command, mirror: str) -> None:
    refused(longshore("trace", "download", "faults", "--mirror", mirror))


def test_a_proxy_that_is_no_url_is_one_line(longshore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://x:y")
    assert "ALL_PROXY" in refused(longshore("trace", "download", "faults"))


def test_the_mirror_can_be_named_by_the_environment(download: Download, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("catalogue.json").write_text(json.dumps([download.row]))
    monkeypatch.setenv("LONGSHORE_MIRROR", download.server.url)
    assert download.longshore("trace", "download", "small", "--catalogue", "catalogue.json").status == 0


def test_a_disk_that_is_full_is_told_and_the_download_goes_on_later(download: Download) -> None:
    Path("catalogue.json").write_text(json.dumps([download.row]))
    command = [sys.executable, "-m", "longshore", "trace", "download", "small", "--catalogue", "catalogue.json"]
    done = processes.run(
        [*command, "--mirror", download.server.url],
        before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        check=False,
    )
    assert "free some space" in refused(Done(done.returncode, done.stdout, done.stderr))
    assert not Path("small.csv").exists()
    done_later = download()
    assert done_later.status == 0, done_later.err
    assert download.server.asked[0][1] == "bytes=100000-"


def test_ctrl_c_leaves_what_has_come(download: Download) -> None:
    Path("catalogue.json").write_text(json.dumps([download.row]))
    download.server.ways = ["hang:5000"]
    command = [sys.executable, "-m", "longshore", "trace", "download", "small", "--catalogue", "catalogue.json"]
    line = [*command, "--mirror", download.server.url]
    with processes.start(line, stdout=processes.PIPE, stderr=processes.PIPE, text=True) as running:
        while not download.server.asked:
            assert running.poll() is None
            time.sleep(0.01)
        time.sleep(0.5)  # the bytes are on their way
        running.send_signal(signal.SIGINT)
        _, err = running.communicate()
    assert running.returncode == 130
    assert "Traceback" not in err
    assert download().status == 0
    assert Path("small.csv").read_bytes() == CSV


def test_a_folder_takes_the_file_under_its_own_name(download: Download) -> None:
    Path("traces").mkdir()
    assert download("--output", "traces").status == 0
    assert Path("traces/small.csv").read_bytes() == CSV


@pytest.mark.parametrize("output", ["absent/x.csv", "x" * 300, "locked/x.csv"])
def test_a_place_that_cannot_be_written_is_one_line(download: Download, output: str) -> None:
    Path("locked").mkdir(mode=0o500)
    if output.startswith("locked") and os.access("locked", os.W_OK):
        pytest.skip("takes a user who may not write everywhere, as root may")
    assert "--output" in refused(download("--output", output))
    assert download.server.asked == []


def test_nothing_is_written_through_a_link(download: Download) -> None:
    Path("precious").write_bytes(b"mine")
    Path("small.csv.part").symlink_to("precious")
    refused(download())
    assert Path("precious").read_bytes() == b"mine"


def test_a_pipe_in_the_place_of_the_part_is_one_line(download: Download) -> None:
    os.mkfifo("small.csv.part")
    assert "no plain file" in refused(download())


def test_two_downloads_do_not_write_one_file(download: Download) -> None:
    with Path("small.csv.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another download" in refused(download())
    assert download().status == 0
