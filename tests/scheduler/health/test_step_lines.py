"""What a rank writes of its steps is read to the line, whatever it writes."""

import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longshore.reporting import Steps
from longshore.scheduler.backends.local.folders import MAX_NEW_BYTES, read_new_lines
from longshore.scheduler.health.step_watch import Begun, StepKind, StepWatch, parse_checkpoints, parse_steps

GOOD = b"train 17 1732294800.125 0.5 -1.5e-3\n"
WORDS = st.sampled_from(
    [b"train", b"done", b" ", b"17", b".", b"-", b"1e9", b"\n", b"\r", b"\xff", b"\0", b"ab12cd34", b"nan", b"e+"]
)


@given(st.one_of(st.binary(), st.lists(WORDS).map(b"".join)))
def test_no_bytes_are_too_odd_to_be_read(content: bytes) -> None:
    steps = parse_steps(content)
    watch = StepWatch(1, None, None, 0.0)
    watch.add_steps([steps], 1.0)
    watch.find_hang(1e6)
    for saved in parse_checkpoints(content):
        assert saved.path.isprintable()
    assert parse_steps(content + b"\n" + GOOD)[-1] == Begun(StepKind.TRAIN, 17, 1732294800.125, 0.5, -0.0015)


@pytest.mark.parametrize(
    "line",
    [b"train 17", b"train 17 nan", b"train 1_0 5.0", b"train -1 5.0", b"train 17 5.0 -1", b" train 17 5.0",
     b"train 17 5.0 ", b"trains 17 5.0", b"train 17 1e9", b"train  17 5.0", b"train 9999999999999999 5.0",
     b"train 17 5.0 nan", b"train 17 5.0 - 1 x", b"train 17 5.0 - 1 2 3",
     b"train 17 5.0 - 1 -2", b"train 17 5.0 - ", b"train 17 5.0 - \xff",
     b"train 17 5.0 - " + b"1" * 401],
)  # fmt: skip
def test_a_line_that_is_not_as_it_should_be_is_passed_over(line: bytes) -> None:
    assert parse_steps(line + b"\n") == []


@pytest.mark.parametrize(
    "line", [b"1 5.0 - ", b"1 5.0 xyz /a", b"1 5.0 - a\xffb", b"1 5.0 - " + b"a" * 1025, b"1 - /a"]
)
def test_a_checkpoint_that_is_not_as_it_should_be_is_passed_over(line: bytes) -> None:
    assert parse_checkpoints(line + b"\n") == []


@given(st.lists(st.binary(max_size=40), max_size=20), st.lists(st.integers(0, 40), max_size=20))
def test_a_file_that_grows_is_read_line_by_line_and_each_line_once(lines: list[bytes], sizes: list[int]) -> None:
    content, read, offset, written = b"".join(it.replace(b"\n", b"") + b"\n" for it in lines), b"", 0, 0
    with TemporaryDirectory() as path:
        folder = os.open(path, os.O_RDONLY)
        for size in [*sizes, len(content)]:
            with (Path(path) / "steps-0").open("ab") as file:
                file.write(content[written : written + size])
            written += size
            news, offset = read_new_lines(folder, "steps-0", offset)
            assert news == b"" or news.endswith(b"\n")
            read += news
        os.close(folder)
    assert read == content


@pytest.fixture
def folder(tmp_path: Path) -> int:
    return os.open(tmp_path, os.O_RDONLY)


def test_of_much_only_the_last_is_read_and_it_begins_with_a_whole_line(tmp_path: Path, folder: int) -> None:
    lines = [f"{at} 5.0 - /ckpt/{at}\n".encode() for at in range(10_000)]
    (tmp_path / "saved-0").write_bytes(b"".join(lines))
    news, offset = read_new_lines(folder, "saved-0", 0)
    assert (len(news) <= MAX_NEW_BYTES, offset) == (True, len(b"".join(lines)))
    assert b"".join(lines).endswith(b"\n" + news)


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path, folder: int) -> None:
    (tmp_path / "steps-0").write_bytes(GOOD)
    assert read_new_lines(folder, "steps-0", 10 * len(GOOD)) == (GOOD, len(GOOD))


def test_what_is_no_file_is_refused_and_what_is_not_there_is_empty(tmp_path: Path, folder: int) -> None:
    (tmp_path / "secret").write_bytes(GOOD)
    (tmp_path / "steps-0").symlink_to("secret")
    os.mkfifo(tmp_path / "steps-1")
    for rank in (0, 1):
        with pytest.raises(OSError, match=f"steps-{rank}"):
            read_new_lines(folder, f"steps-{rank}", 0)
    assert read_new_lines(folder, "steps-2", 0) == (b"", 0)


def test_what_a_program_writes_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_STEPS", str(tmp_path / "steps-0"))
    monkeypatch.setenv("LONGSHORE_SAVED", str(tmp_path / "saved-0"))
    steps = Steps()
    steps.begin(1)
    steps.begin(2, computed_s=1e-5)
    steps.begin(2, "checkpoint")
    steps.saved(2, "/ckpt/ü 2", digest="ab12cd34")
    steps.done()

    reported = parse_steps((tmp_path / "steps-0").read_bytes())
    assert [(it.kind.value, it.step, it.computed_s) for it in reported] == [
        ("train", 1, None), ("train", 2, 0.00001), ("checkpoint", 2, None), ("done", 0, None),
    ]  # fmt: skip
    saved = parse_checkpoints((tmp_path / "saved-0").read_bytes())
    assert [(it.step, it.digest, it.path) for it in saved] == [(2, "ab12cd34", "/ckpt/ü 2")]


@pytest.mark.parametrize("computed_s", [math.nan, math.inf, -math.inf])
def test_a_step_counts_though_its_loss_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed_s: float
) -> None:
    monkeypatch.setenv("LONGSHORE_STEPS", str(tmp_path / "steps-0"))
    Steps().begin(3, computed_s=computed_s)
    assert [(it.step, it.computed_s) for it in parse_steps((tmp_path / "steps-0").read_bytes())] == [(3, None)]


@given(st.floats() | st.integers())
def test_any_number_is_read_as_a_loss(loss: float) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGSHORE_STEPS", f"{folder}/steps-0")
        Steps().begin(3, loss=loss)
        (reported,) = parse_steps((Path(folder) / "steps-0").read_bytes())
    assert reported.step == 3
    assert reported.loss == pytest.approx(loss, rel=1e-8, abs=0.0, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "loss"),
    [("-nan", math.nan), ("NaN", math.nan), ("Infinity", math.inf), ("-inf", -math.inf), ("+1.5", 1.5), ("1E5", 1e5),
     (f"{3.4e38:f}", 3.4e38), ("0." + "3" * 60, 1 / 3), ("1e999", math.inf), ("-", None), ("high", None),
     ("1,5", None)],
)  # fmt: skip
def test_a_step_counts_however_its_loss_is_written(text: str, loss: float | None) -> None:
    (reported,) = parse_steps(f"train 17 5.0 0.5 {text}\n".encode())
    assert (reported.step, reported.computed_s) == (17, 0.5)
    assert reported.loss == (None if loss is None else pytest.approx(loss, nan_ok=True))


@pytest.mark.parametrize("loss", ["high", [1.0, 2.0], 10**400, torch.zeros(2), torch.zeros(2, device="meta").sum()])
def test_what_is_no_number_is_no_loss_and_ends_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    monkeypatch.setenv("LONGSHORE_STEPS", str(tmp_path / "steps-0"))
    Steps().begin(3, computed_s=0.5, loss=loss)
    (reported,) = parse_steps((tmp_path / "steps-0").read_bytes())
    assert (reported.step, reported.computed_s, reported.loss) == (3, 0.5, None)


def test_each_field_of_a_line_is_read_without_the_others(tmp_path: Path) -> None:
    figures = [
        (c, loss, away) for c in (None, 0.5) for loss in (None, -1.5, math.inf) for away in (None, 0, 2 * 10**11)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGSHORE_STEPS", str(tmp_path / "steps"))
        for computed_s, loss, away_bytes in figures:
            Steps().begin(3, computed_s=computed_s, loss=loss, away_bytes=away_bytes)
    reported = parse_steps((tmp_path / "steps").read_bytes())
    assert [(it.computed_s, it.loss, it.away_bytes) for it in reported] == figures


@pytest.mark.parametrize("path", [os.fsdecode(b"/ckpt/\xff"), "/ckpt/\ud800"])
def test_a_path_that_is_no_text_ends_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("LONGSHORE_SAVED", str(tmp_path / "saved-0"))
    steps = Steps()
    steps.saved(1, path)
    steps.saved(2, "/ckpt/2")
    assert [it.step for it in parse_checkpoints((tmp_path / "saved-0").read_bytes())] == [2]


def test_a_program_without_a_scheduler_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGSHORE_STEPS", raising=False)
    monkeypatch.setenv("LONGSHORE_SAVED", "/nowhere/at/all")
    steps = Steps()
    steps.begin(1)
    steps.saved(1, "/ckpt")
    steps.done()
