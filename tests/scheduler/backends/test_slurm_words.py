"""How the words of Slurm are read: GPUs by their name alone, states with every suffix of its manual."""

import itertools
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.backends.slurm.commands import (
    Commands,
    Gres,
    SlurmNode,
    gpu_types,
    parse_gres,
    parse_node_state,
)
from longshore.scheduler.backends.slurm.held import _begins_later

TWO = {0: "i0", 1: "i1"}
GRES = {
    "gpu:i0:1,gpu:i1:1": TWO,
    "gpu:i0:1(S:0),gpu:i1:1(S:0)": TWO,
    "gpu:i0:1(S:0-1),gpu:i1:1(S:0,2)": TWO,
    "gpu:i0:1(IDX:0),gpu:i1:1(IDX:1)": TWO,
    "gpu:i0:1(IDX:N/A),gpu:i1:1(S:0": TWO,
    "gpu:i0,gpu:i1": TWO,
    " gpu:i0:1 , gpu:i1:1 ": TWO,
    "gpu:i1:1,gpu:i0:1": TWO,
    "gpu:i0:1,gpu:i1:1,gpumem:160G": TWO,
    "gpumem:160G,gpu:i0:1,gpu:i1:1": TWO,
    "gpu_mem:80K,gpu:i0:1,gpu:i1:1,gpus:9,gpu-share:4,gputil:1": TWO,
    "gpu:i0:1,gpu:i1:1,shard:a100:16(S:0),mps:i0:100,mps:i1:100,nic:mlx:2,craynetwork:4,bandwidth:lustre:4G": TWO,
    "gpu:i0:1,gpu:i1:0": {0: "i0"},
    "gpu:i0:0,gpu:i1:1": {1: "i1"},
    "gpu:a100-0:1(S:0),gpu:a100-1:1(S:0,1),shard:4": {0: "a100-0", 1: "a100-1"},
    "gpu:h100_0:1,gpu:h100_1:1": {0: "h100_0", 1: "h100_1"},
    "gpu:a100:4": {}, "gpu:4": {}, "gpu": {}, "gpu(S:0)": {}, "gpu:no_consume:4": {}, "gpu:4(S:0-1)": {},
    "gpu:i1:1": {}, "gpu:i0:1,gpu:i0:1": {}, "gpu:i0:1,gpu:i1:2": {}, "gpu:i0:1,gpu:a100:3": {},
    "gpu:a100-80:1,gpu:a100-40:1": {}, "gpu:i0:1K": {}, "gpumem:160G": {}, "shard:4": {},
    "(null)": {}, "": {}, "N/A": {}, "null": {}, ",": {},
}  # fmt: skip
USABLE = ("idle", "mixed", "mix", "allocated", "alloc", "completing", "comp", "planned", "plnd", "reserved", "resv",
          "powering_up", "pow_up", "powered_down")  # fmt: skip
UNUSABLE = (
    "down", "drained", "draining", "drain", "drng", "fail", "failing", "failg", "future", "futr", "inval", "maint",
    "reboot_issued", "reboot_requested", "reboot", "perfctrs", "npc", "power_down", "powering_down",
    "pow_dn", "error", "blocked", "of_a_later_version", "",
)  # fmt: skip
TAKES_JOBS = {"": True, "*": True, "~": True, "#": True, "!": False, "%": False, "$": False, "@": False, "^": False,
              "-": True, "+": True}  # fmt: skip
COMPOUND = {
    "IDLE+DRAIN": (False, True), "MIXED+DRAIN": (False, True), "IDLE+CLOUD": (True, True),
    "MIXED+CLOUD+PLANNED": (True, True), "IDLE+CLOUD+POWERED_DOWN": (True, True),
    "DOWN+CLOUD+POWERED_DOWN": (False, True),
    "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP": (True, False), "DOWN+NOT_RESPONDING": (False, False),
    "IDLE+MAINTENANCE+RESERVED": (False, True), "IDLE+DYNAMIC_NORM": (True, True), "ALLOCATED+COMPLETING": (True, True),
    "IDLE+REBOOT_REQUESTED": (False, True), "IDLE+INVALID_REG": (False, True), "IDLE+BLOCKED": (False, True),
    "MIXED+POWER_DOWN": (False, True), "IDLE+?": (True, True),
    "DOWN*+DRAIN": (False, False), "IDLE*+CLOUD": (True, False), "IDLE~+CLOUD": (True, True),
}  # fmt: skip


@pytest.mark.parametrize(("gres", "types"), GRES.items())
def test_a_gpu_is_a_resource_with_just_this_name(gres: str, types: dict[int, str]) -> None:
    assert gpu_types(gres) == types


@given(st.integers(1, 8), st.lists(st.sampled_from(["gpumem:160G", "gpux:i9:1", "shard:4(S:0-1)", "mps:1", "(null)"])))
def test_other_resources_change_no_gpu(gpus: int, others: list[str]) -> None:
    own = [f"gpu:i{at}:1(S:0,{at})" for at in range(gpus)]
    mixed = [each for pair in itertools.zip_longest(own, others) for each in pair if each]
    assert gpu_types(",".join(mixed)) == {at: f"i{at}" for at in range(gpus)}


def test_counts_have_their_suffix() -> None:
    found = list(parse_gres("a:2,b:x:3K,c:1m,d:2GiB,e:T,f:x:y:1P"))
    assert found == [
        Gres("a", "", 2), Gres("b", "x", 3 << 10), Gres("c", "", 1 << 20), Gres("d", "", 2 << 30), Gres("e", "T", 1),
        Gres("f", "x:y", 1 << 50),
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", TAKES_JOBS)
def test_a_state_with_each_suffix_says_whether_a_node_takes_jobs_and_answers(suffix: str) -> None:
    for word, text in itertools.product((*USABLE, *UNUSABLE), ("{}{}", " {}{} ")):
        for each in (word, word.upper()):
            node = SlurmNode("", {}, text.format(each, suffix), "none")
            found = (node.takes_jobs, node.answers, node.is_known, node.is_fenced)
            takes_jobs, is_off = word in USABLE and TAKES_JOBS[suffix], word == "powered_down" or suffix == "~"
            assert found == (takes_jobs, suffix != "*", True, is_off), node.state


@pytest.mark.parametrize(("text", "expected"), COMPOUND.items())
def test_states_in_several_words_are_read_word_by_word(text: str, expected: tuple[bool, bool]) -> None:
    node = SlurmNode("", {}, text, "none")
    assert (node.takes_jobs, node.answers) == expected


@pytest.mark.parametrize("text", ["unknown", "UNKNOWN*", "unk*"])
def test_a_controller_that_was_just_started_does_not_know_its_nodes(text: str) -> None:
    assert not SlurmNode("", {}, text, "none").is_known


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [("down", "fenced: power cut", True), ("down*", "Fenced by ops", True), ("down*", "Not responding", False),
     ("drained", "fenced: no, it is drained", False), ("idle", "fenced", False)],
)  # fmt: skip
def test_only_a_node_that_is_down_is_vouched_for_by_its_reason(state: str, reason: str, *, expected: bool) -> None:
    assert SlurmNode("", {}, state, reason).is_fenced == expected


@given(st.text(), st.text())
def test_no_words_are_too_odd_to_be_read(gres: str, state: str) -> None:
    assert all(len(name) < 1000 for name in gpu_types(gres).values())
    assert parse_node_state(state)[0] == parse_node_state(state.strip())[0]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York", "XXX-5:30"])
def test_a_begin_time_is_the_same_in_every_time_zone_of_the_scheduler(
    zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "$TZ"; date -d @1800000000 "+%Y-%m-%dT%H:%M:%S"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with monkeypatch.context() as there:
        there.setenv("TZ", zone)
        time.tzset()
        shown, begins = Commands(None).call("squeue", ()).split()
        found = [_begins_later(begins, 1.8e9 + after_s) for after_s in (-1.0, 1.0)]
    time.tzset()
    assert (shown, begins) == ("UTC", datetime.fromtimestamp(1.8e9, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    assert found == [True, False]
