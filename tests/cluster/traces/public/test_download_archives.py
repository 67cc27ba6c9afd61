"""Public traces that are archives."""

import fcntl
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.cluster.traces.public.download_runs import CSV, Download, left, refused, row
from tests.command_line import Command


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def member(name: str, content: bytes = CSV, **other: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    for key, value in other.items():
        setattr(info, key, value)
    return info, content


def packed(download: Download, content: bytes) -> Download:
    download.server.content = content
    download.row = row(content, saved_as="many", members="cluster[0-9][0-9].csv", size_bytes=None)
    return download


def test_an_archive_becomes_a_folder_of_its_files(longshore: Command, download: Download) -> None:
    content = archive(
        member("raw", b"", type=tarfile.DIRTYPE), member("raw/cluster01.csv"), member("raw/cluster02.csv", CSV[:100]),
        member("raw/._cluster01.csv", b"junk"), member("README", b"read me"),
    )  # fmt: skip
    done = packed(download, content)(ways=["cut:300", "whole"])
    assert done.status == 0, done.err
    assert "files: cluster01.csv, cluster02.csv" in done.out
    assert left() == {"many"}
    assert {path.name for path in Path("many").iterdir()} == {"cluster01.csv", "cluster02.csv", "SOURCE.json"}
    assert json.loads(Path("many/SOURCE.json").read_text())["licence"] == "CC-BY-4.0 (somebody/traces)"
    assert longshore("trace", "inspect", "many/cluster01.csv").status == 0

    assert "already there" in download().out
    assert download.server.asked == []
    Path("many/cluster01.csv").write_bytes(b"changed")
    assert "something else stands there" in refused(download())


@pytest.mark.parametrize(
    "bad",
    [
        member("../cluster01.csv"),
        member("a/../../cluster01.csv"),
        member("/tmp/cluster01.csv"),
        member("cluster01.csv", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("cluster01.csv", b"", type=tarfile.LNKTYPE, linkname="cluster00.csv"),
        member("cluster01.csv", b"", type=tarfile.CHRTYPE),
        member("cluster01.csv", b"", type=tarfile.FIFOTYPE),
        member("deep/cluster00.csv"),
    ],
    ids=["up", "up-inside", "absolute", "symlink", "hard-link", "device", "pipe", "twice"],
)
def test_an_archive_that_is_not_safe_writes_nothing(download: Download, bad: tuple[tarfile.TarInfo, bytes]) -> None:
    refused(packed(download, archive(member("cluster00.csv"), bad))())
    assert left() <= {"many.tar.gz.part"}


@pytest.mark.parametrize(
    "content",
    [CSV, b"", archive(), archive(member("other.csv")), archive(member("cluster01.csv"))[:-400]],
    ids=["plain", "nothing", "empty", "other", "cut"],  # the bytes of an archive hold the time at which it was made
)
def test_an_archive_that_cannot_be_used_is_one_line(download: Download, content: bytes) -> None:
    refused(packed(download, content)())
    assert left() <= {"many.tar.gz.part"}


def test_an_archive_that_unpacks_to_very_much_is_refused(download: Download) -> None:
    head = io.BytesIO()
    with tarfile.open(fileobj=head, mode="w:gz") as tar:
        info = tarfile.TarInfo("cluster01.csv")
        info.size = 2**40
        tar.addfile(info)
    assert "more than" in refused(packed(download, head.getvalue())())
    assert left() <= {"many.tar.gz.part"}


@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_killed_download_left_is_removed_by_the_next(download: Download, *, is_there: bool) -> None:
    """One was killed while it unpacked, or once its folder had its name."""
    content = archive(member("cluster01.csv"))
    if is_there:
        assert packed(download, content)().status == 0
    else:
        Path(".many.unpacking").mkdir()
        Path(".many.unpacking/cluster01.csv").write_bytes(CSV[:1000])
    Path("many.tar.gz.part").write_bytes(content)
    done = packed(download, content)()
    assert done.status == 0, done.err
    assert download.server.asked == []
    assert left() == {"many"}
    assert Path("many/cluster01.csv").read_bytes() == CSV


def test_the_part_of_a_download_that_runs_is_left_alone(download: Download) -> None:
    content = archive(member("cluster01.csv"))
    assert packed(download, content)().status == 0
    with Path("many.tar.gz.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"begun")
        other.flush()
        assert "already there" in packed(download, content)().out
        assert Path("many.tar.gz.part").read_bytes() == b"begun"
