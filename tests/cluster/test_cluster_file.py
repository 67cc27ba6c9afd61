"""Cluster files: what they mean, and the errors of those that cannot be used."""

import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.faults.models import Lemon
from longshore.cluster.files.errors import InputError, ManyProblemsError
from longshore.cluster.model.problem import rules_stopping_at_faults
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.presets.cluster_file import ClusterSetup, draw_faults, read_cluster
from longshore.cluster.presets.drawn import fault_process, rules
from longshore.cluster.presets.problems import Regime, cluster_problem
from longshore.cluster.switching import FORMULAS

EXAMPLES = Path(__file__).parents[2] / "examples"
GOOD = """\
node_types:
  v100:
    gpus: 4
    peak_flops: 125e12
    memory_bytes: 32e9
  a100:
    gpus: 2
    peak_flops: 250e12
    memory_bytes: 80e9
    nic_bytes_per_s: 25e9
    hazard_per_s: 2e-7
racks:
  - count: 2
    nodes:
      - type: v100
      - {type: a100, count: 2, hazard_per_s: 3e-7}
  - uplink_bytes_per_s: 1e9
    nodes:
      - {type: a100, name: last}
faults:
  model: lemon
"""


def read(text: str | bytes, folder: Path) -> ClusterSetup:
    path = folder / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_cluster(path)


def test_racks_nodes_and_gpus_stand_in_the_order_of_the_file(tmp_path: Path) -> None:
    setup = read(GOOD, tmp_path)
    cluster = setup.cluster
    assert cluster.first_gpu.tolist() == [0, 4, 6, 8, 12, 14, 16, 18]
    assert cluster.gpu_node.tolist() == [0] * 4 + [1] * 2 + [2] * 2 + [3] * 4 + [4] * 2 + [5] * 2 + [6] * 2
    assert cluster.first_node.tolist() == [0, 3, 6, 7]
    assert cluster.node_rack.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert [setup.type_names[i] for i in cluster.node_type] == ["v100", "a100", "a100", "v100", "a100", "a100", "a100"]
    assert setup.node_names[3:] == ("rack1-node0", "rack1-node1", "rack1-node2", "last")
    assert cluster.speed.tolist() == [1, 2, 2, 1, 2, 2, 2]
    assert cluster.nic_bytes_per_s.tolist() == [12.5e9, 25e9, 25e9, 12.5e9, 25e9, 25e9, 25e9]
    assert cluster.uplink_bytes_per_s.tolist() == [50e9, 50e9, 1e9]
    assert setup.hazard_per_s[[4, 7, 16]].tolist() == [3e-7, 3e-7, 2e-7]
    assert setup.faults == Lemon(model="lemon")
    assert setup.name == "c"


def test_a_fault_stops_a_job_at_once_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    usual = read(GOOD, tmp_path).rules
    assert (usual.switching, usual.detection_s, usual.preflight_s, usual.spares) == (False, 0.0, 0.0, 0.0)
    keys = "handling: switch, detection_s: 12, preflight_s: 3, switch_s: 20, spares: 0.05, replacement: source"
    found = read(GOOD.replace("  model: lemon", f"  {{model: lemon, {keys}}}"), tmp_path).rules
    assert found == usual._replace(
        switching=True, detection_s=12.0, preflight_s=3.0, switch_s=20.0, spares=0.05, replacement=FORMULAS["source"]
    )
    assert rules_stopping_at_faults(found)._replace(switch_s=30.0, spares=0.0, replacement=usual.replacement) == usual


def test_nodes_become_slow_if_the_file_says_how_often_by_how_much_and_for_how_long(tmp_path: Path) -> None:
    usual = read(GOOD, tmp_path).rules
    assert usual.slow_per_s == 0.0
    slow = "{model: lemon, slow: {a_node_day: 0.05, factor: 4, lasts_s: 7200}}"
    found = read(GOOD.replace("  model: lemon", f"  {slow}"), tmp_path).rules
    assert found == usual._replace(slow_per_s=0.05 / 86400, slow_factor=4.0, slow_mean_s=7200.0)
    assert rules_stopping_at_faults(found).slow_per_s == 0.0


def test_backups_need_slow_nodes_and_jobs_that_switch(tmp_path: Path) -> None:
    slow = "slow: {a_node_day: 0.05, factor: 4, lasts_s: 7200}"
    found = read(GOOD.replace("  model: lemon", f"  {{model: lemon, handling: switch, {slow}, backups: 2}}"), tmp_path)
    assert found.rules.backups == 2
    with pytest.raises(InputError, match=r"c\.yaml:\d+:faults: backups are for GPUs of slow nodes; add slow"):
        read(GOOD.replace("  model: lemon", "  {model: lemon, handling: switch, backups: 2}"), tmp_path)
    with pytest.raises(InputError, match=r"c\.yaml:\d+:faults: backups join rings .* write handling: switch"):
        read(GOOD.replace("  model: lemon", f"  {{model: lemon, {slow}, backups: 2}}"), tmp_path)


@pytest.mark.parametrize(
    ("place", "slow"),
    [
        ("factor", "{a_node_day: 0.05, lasts_s: 7200}"), ("a_node_day", "{factor: 4, lasts_s: 7200}"),
        ("lasts_s", "{a_node_day: 0.05, factor: 4}"), ("factor", "{a_node_day: 0.05, factor: 1, lasts_s: 7200}"),
        ("factor", "{a_node_day: 0.05, factor: .nan, lasts_s: 7200}"),
        ("a_node_day", "{a_node_day: 0, factor: 4, lasts_s: 7200}"),
        ("lasts_s", "{a_node_day: 0.05, factor: 4, lasts_s: 2h}"),
        ("lasts", "{a_node_day: 0.05, factor: 4, lasts_s: 9, lasts: 9}"),
    ],
)  # fmt: skip
def test_slow_nodes_that_cannot_be_drawn_are_refused_by_their_key(place: str, slow: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"c\.yaml:\d+:faults\.slow\.{place}: "):
        read(GOOD.replace("  model: lemon", f"  {{model: lemon, slow: {slow}}}"), tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("handling", "replace"), ("handling", "true"), ("detection_s", "-1"), ("detection_s", ".inf"),
        ("detection_s", "soon"), ("preflight_s", ".nan"), ("switch_s", "1e9"), ("spares", "0.6"), ("spares", "-0.1"),
        ("spares", "2"), ("spares", "[1]"), ("replacement", "best"), ("switching", "true"),
    ],
)  # fmt: skip
def test_a_handling_of_faults_that_cannot_be_followed_is_refused_by_its_key(
    key: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"c\.yaml:\d+:faults\.{key}: "):
        read(GOOD.replace("  model: lemon", f"  {{model: lemon, {key}: {value}}}"), tmp_path)


def test_a_job_larger_than_all_gpus_but_the_spares_is_refused(tmp_path: Path) -> None:
    setup = read(GOOD.replace("  model: lemon", "  {model: lemon, handling: switch, spares: 0.25}"), tmp_path)
    jobs = workload_of(("large",), np.array([15]), np.array([1.0]), np.array([0.0]))
    with pytest.raises(InputError, match="job large asks 15 GPUs of a cluster that has 13 besides its spares"):
        cluster_problem(setup, [jobs], Regime(), runs=1, seed=1)


def test_arrays_have_the_types_that_compiled_code_expects(tmp_path: Path) -> None:
    expected = grid_cluster(2, 2)
    for field, array in read(GOOD, tmp_path).cluster._asdict().items():
        assert array.dtype == getattr(expected, field).dtype, field


def test_speed_counts_from_the_reference_type_and_can_be_set(tmp_path: Path) -> None:
    text = GOOD.replace("  a100:\n", "  a100:\n    speed: 3\n") + "reference_type: a100\n"
    setup = read(text, tmp_path)
    assert setup.cluster.speed[:2].tolist() == [0.5, 3]
    assert (setup.rules.reference_gpus, setup.rules.reference_nic_bytes_per_s) == (2, 25e9)


def test_without_a_faults_section_nothing_fails(tmp_path: Path) -> None:
    setup = read(GOOD.split("faults")[0], tmp_path)
    assert not draw_faults(setup, 1)[0].any()


def test_checkpoints_can_be_left_out(tmp_path: Path) -> None:
    assert read(GOOD + "checkpoint_s: .inf\n", tmp_path).rules.checkpoint_s == float("inf")


@pytest.mark.parametrize(
    ("name", "gpus", "racks"), [("small", 64, 2), ("hetero64", 64, 1), ("large", 4096, 32), ("philly64", 64, 2)]
)
def test_every_example_can_be_used(name: str, gpus: int, racks: int) -> None:
    setup = read_cluster(EXAMPLES / f"{name}.yaml")
    rates, _ = draw_faults(setup, 0)
    assert (setup.name, setup.cluster.gpu_node.size, setup.cluster.first_node.size - 1) == (name, gpus, racks)
    assert rates.shape == (gpus + setup.cluster.speed.size + racks,)
    assert rates.any()


def test_the_example_hetero64_is_a_draw_of_the_preset() -> None:
    setup = read_cluster(EXAMPLES / "hetero64.yaml")
    rates, process = draw_faults(setup, 0)
    speed = np.array([2.5, 1, 2.5, 1, 1, 2.5, 1, 2.5])
    assert setup.rules == rules()
    assert process[:4] == fault_process()[:4]
    assert np.allclose(1 / rates[:64] / 3600, np.repeat([1500.0] * 3 + [60.0] + [1500.0] * 4, 8))
    # But for the number of the type, which follows the order of the file.
    expected = grid_cluster(8, 8, speed=speed)._replace(node_type=setup.cluster.node_type)
    for field, array in expected._asdict().items():
        assert np.array_equal(array, getattr(setup.cluster, field)), field


def test_every_example_stands_in_the_folder() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} >= {"small", "hetero64", "large", "philly64"}


WRONG = [
    ("gpus: 4", "gpuz: 4", "c.yaml:3:node_types.v100.gpuz: unknown key; did you mean 'gpus'?"),
    (
        "gpus: 4",
        "gpus: 0",
        "c.yaml:3:node_types.v100.gpus: '0' cannot be used; it should be a whole number from 1 to",
    ),
    ("gpus: 4", "gpus: 1000000000000", "c.yaml:3:node_types.v100.gpus: '1000000000000' cannot be used; it should be"),
    ("gpus: 4", "gpus: two", "c.yaml:3:node_types.v100.gpus: 'two' cannot be used; it should be a whole number"),
    ("gpus: 4", "gpus: true", "c.yaml:3:node_types.v100.gpus: 'true' cannot be used"),
    ("gpus: 4", "gpus: 2.5", "c.yaml:3:node_types.v100.gpus: '2.5' cannot be used"),
    ("    gpus: 4\n", "", "c.yaml:2:node_types.v100.gpus: is missing; add it"),
    ("peak_flops: 125e12", "peak_flops: 1e400", "c.yaml:4:node_types.v100.peak_flops: '1e400' cannot be used"),
    ("peak_flops: 125e12", "peak_flops: .nan", "c.yaml:4:node_types.v100.peak_flops: '.nan' cannot be used"),
    (
        "peak_flops: 125e12",
        "peak_flops: 1e-300",
        "c.yaml:4:node_types.v100.peak_flops: '1e-300' cannot be used; it should be a number from 1000000 to 1e+24",
    ),
    (
        "peak_flops: 125e12",
        "peak_flops: 125e6",
        "c.yaml:8:node_types.a100.peak_flops: 'a100' is 2e+06 times as fast as the reference type; correct peak_flops",
    ),
    ("nic_bytes_per_s: 25e9", "nic_bytes_per_s: 1e-9", "c.yaml:10:node_types.a100.nic_bytes_per_s: '1e-9' cannot be"),
    ("memory_bytes: 32e9", "memory_bytes: 1e19", "c.yaml:5:node_types.v100.memory_bytes: '1e19' cannot be used"),
    ("hazard_per_s: 2e-7", "speed: 1e-7", "c.yaml:11:node_types.a100.speed: '1e-7' cannot be used; it should be"),
    ("peak_flops: 125e12", "peak_flops: -1", "c.yaml:4:node_types.v100.peak_flops: '-1' cannot be used"),
    ("peak_flops: 125e12", "peak_flops: 1" + "0" * 5000, "c.yaml:4: the number "),
    ("peak_flops: 125e12", "peak_flops: 1" + "0" * 400, "c.yaml:4: the number '1000000"),
    ("- type: v100", "- type: v10", "c.yaml:15:racks.0.nodes.0.type: 'v10' is not a node type; did you mean 'v100'?"),
    ("count: 2, hazard", "cuont: 2, hazard", "c.yaml:16:racks.0.nodes.1.cuont: unknown key; did you mean 'count'?"),
    ("- count: 2\n", "- count: 900000\n", "c.yaml:12:racks: the cluster has 7200002 GPUs; write counts that give"),
    ("name: last", "name: rack0-node0", "two nodes are called 'rack0-node0'; give each another name"),
    (
        "name: last",
        "name: last, count: 3",
        "c.yaml:19:racks.1.nodes.0: the name 'last' cannot stand for 3 nodes;",
    ),
    ("model: lemon", "model: lemons", "c.yaml:21:faults.model: 'lemons' is not a fault model; did you mean 'lemon'?"),
    (
        "model: lemon",
        "model: replay",
        "c.yaml:21:faults.model: 'replay' is not a fault model; known: correlated",
    ),
    ("model: lemon", "modle: lemon", "c.yaml:20:faults.model: is missing; add it; known: correlated, exp"),
    ("model: lemon", "model: lemon\n  shape: 0", "c.yaml:22:faults.shape: '0' cannot be used; it should be a number"),
    (
        "model: lemon",
        "model: lemon\n  lemon_shar: 0",
        "c.yaml:22:faults.lemon_shar: unknown key; did you mean 'lemon",
    ),
    (
        "faults:",
        "run_time: {node_penalty: 1}\nfaults:",
        "c.yaml:20:run_time: node_penalty belongs to the simple",
    ),
    ("faults:", "reference_type: h\nfaults:", "c.yaml:20:reference_type: 'h' is not a node type; known: v100, a100"),
    (
        "faults:",
        "checkpoint_s: 0\nfaults:",
        "c.yaml:20:checkpoint_s: '0' cannot be used; it should be a number above 0",
    ),
    (
        "faults:",
        "checkpoint_s: 5e-324\nfaults:",
        "c.yaml:20:checkpoint_s: 4.94066e-324 cannot be used; it should be from 0.001",
    ),
    (
        "faults:",
        "checkpoint_s: 1e300\nfaults:",
        "c.yaml:20:checkpoint_s: 1e+300 cannot be used; it should be from 0.001 to 1e+30 s",
    ),
    ("faults:", "checkpoint_s: .nan\nfaults:", "c.yaml:20:checkpoint_s: '.nan' cannot be used"),
    ("faults:", "restart_s: .inf\nfaults:", "c.yaml:20:restart_s: '.inf' cannot be used"),
    ("faults:", "restart_s: 1e8\nfaults:", "c.yaml:20:restart_s: '1e8' cannot be used; it should be a number from 0"),
    ("faults:", "racks: []\nfaults:", "c.yaml:20: the key 'racks' stands twice; drop one of them"),
    ("faults:", "? [1, 2]\n: 3\nfaults:", "c.yaml:20: a key must be one word"),
    ("faults:", "7: 3\nfaults:", "c.yaml:20:7: "),
    ("  v100:", "  v100: &a\n    <<: *a", "c.yaml:2: anchors and aliases are not supported; write the value out"),
    ("racks:", "racks: [", "not YAML"),
    (GOOD, "", "c.yaml: the file is empty"),
    (GOOD, "# nothing\n", "c.yaml: the file is empty"),
    (GOOD, "- 1\n", "c.yaml:1: the file does not hold keys and values"),
    (GOOD, "a: 1\n---\nb: 2\n", "c.yaml:2: not YAML"),
    *((GOOD, "x: " + deep * 100_000, "c.yaml: nested too deeply") for deep in ("[", "[{a: ", "{a: [")),
    (GOOD, "- " * 100_000, "c.yaml: nested too deeply"),
    (GOOD, "x: 2001-13-45", "c.yaml:1: not YAML"),
    (GOOD, "x: \x00", "c.yaml: not YAML"),
    (GOOD, "node_types: {}\nracks: []", "c.yaml:1:node_types: "),
    (
        GOOD,
        "node_types: 3\nracks: 4",
        "c.yaml:1:node_types: '3' cannot be used; it should be keys with values",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_file_that_cannot_be_used_is_answered_with_line_field_and_fix(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        read(GOOD.replace(old, new, 1), tmp_path)
    assert message in str(caught.value)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(str(tmp_path / "c.yaml")) for line in lines)
    assert max(map(len, lines)) < 400


def test_bytes_that_are_no_text_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="byte 0 is not UTF-8"):
        read(b"\xff\xfe\x00", tmp_path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_cluster(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_cluster(tmp_path)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    plain = read(GOOD, tmp_path)
    other = read("\ufeff" + GOOD.replace("\n", "\r\n"), tmp_path)
    assert dataclasses.replace(other, cluster=plain.cluster, hazard_per_s=plain.hazard_per_s) == plain


NODE_TYPE = "{gpus: 1, peak_flops: PEAK, memory_bytes: 1e9}"
TYPES = "node_types:\n" + "".join(f"  t{i}: {NODE_TYPE}\n" for i in range(3000)).replace("PEAK", "1e12", 1)
MANY_FAULTS = {
    "names that are not known": TYPES.replace("PEAK", "1e12")
    + "racks:\n"
    + "".join(f"- {{nodes: [{{type: u{i}}}]}}\n" for i in range(3000)),
    "values that do not fit": TYPES.replace("PEAK", "0") + "racks: [{nodes: [{type: t0}]}]\n",
    "speeds": TYPES.replace("PEAK", "1e23") + "racks: [{nodes: [{type: t0}]}]\n",
    "keys that stand twice": GOOD + "name: a\n" * 3001,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("text", MANY_FAULTS.values(), ids=MANY_FAULTS.keys())
def test_of_thousands_of_faults_the_first_are_told_and_the_others_counted(text: str, tmp_path: Path) -> None:
    with pytest.raises(ManyProblemsError) as caught:
        read(text, tmp_path)
    assert len(caught.value.errors) == 21
    assert re.search(r"c.yaml: 2,9(79|80) more of its values cannot be used; correct", str(caught.value.errors[-1]))


@given(text=st.permutations(GOOD.splitlines()).map("\n".join) | st.text(max_size=60), cut=st.integers(0, 400))
def test_a_damaged_file_gives_an_input_error_or_a_cluster(
    text: str, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        setup = read(text[:cut].encode(errors="replace"), tmp_path_factory.getbasetemp())
    except InputError:
        return
    assert setup.cluster.gpu_node.size == setup.cluster.first_gpu[-1] >= 1


LONG = "x" * 70_000


def spoiled(value: Any) -> Iterator[Any]:
    """Yield what the file holds with a very long text in place of one key or value."""
    if isinstance(value, dict):
        for key, it in value.items():
            rest = {other: that for other, that in value.items() if other != key}
            yield {**rest, LONG: it}
            yield from ({**rest, key: changed} for changed in spoiled(it))
    elif isinstance(value, list):
        for at, it in enumerate(value):
            yield from ([*value[:at], changed, *value[at + 1 :]] for changed in spoiled(it))
    else:
        yield LONG


@cache
def spoiled_files() -> list[str]:
    return [yaml.safe_dump(content, width=10**6) for content in spoiled(yaml.safe_load(GOOD))]


def test_an_error_about_a_very_long_text_is_short(tmp_path: Path) -> None:
    for text in spoiled_files():
        with pytest.raises(InputError) as caught:
            read(text, tmp_path)
        assert len(str(caught.value)) < 4000


LONG_NUMBERS = ("9" * 5000, "-0x" + "f" * 5000, "0" + "7" * 5000, "0b" + "1" * 9000, "1" + ":59" * 3000, "1_" * 3000,
                "0." + "1" * 5000, "1" + ":59" * 3000 + ".5", "1e" + "0" * 5000)  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("number", LONG_NUMBERS, ids=lambda number: number[:4])
def test_a_number_of_thousands_of_digits_is_refused_wherever_it_stands(number: str, tmp_path: Path) -> None:
    for text in spoiled_files():
        with pytest.raises(InputError) as caught:
            read(text.replace(LONG, number), tmp_path)
        assert len(str(caught.value)) < 4000
