"""`longshore plan find` and `longshore plan calibrate` as a user meets them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.planner.hardware import DEFAULT, read_hardware, write_hardware
from tests.command_line import Command
from tests.planner.measured_runs import HEAD, ROW, made_runs

ROOT = Path(__file__).parent.parent.parent
COLUMNS = "name,parameters,forward_flops,saved_bytes,output_bytes,heads,is_block,tokens\n"
BLOCK = "block{},50331648,55834574848,71303168,4194304,16,1,1024\n"
TABLE = COLUMNS + "words,1e8,0,8192,4194304,0,0,1024\n" + "".join(BLOCK.format(i) for i in range(24))
CLUSTER = """
node_types:
  a100: {gpus: 8, peak_flops: 312e12, memory_bytes: 80e9, intra_bytes_per_s: 300e9, nic_bytes_per_s: 25e9}
racks:
  - nodes: [{type: a100, count: 2}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to work in, with a model as a table and a cluster."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.csv").write_text(TABLE)
    (tmp_path / "mine.yaml").write_text(CLUSTER)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_plan_is_reported_with_its_reasons_and_every_constant(longshore: Command) -> None:
    done = longshore("plan", "find", "model.csv", "--tokens", "1e9", "--deadline", "24h", "--cluster", "mine.yaml")
    assert done.status == 0, done.err
    assert "meet the deadline of 1d 00h" in done.out
    assert "profiled by a table" in done.out
    for name in (*DEFAULT.as_constants._fields, "bound_factor", "memory_bytes_per_s"):
        assert f"\n{name} " in done.out
    assert "GPU-hours" in done.out


@pytest.mark.usefixtures("folder")
def test_json_has_the_plan_and_every_other_with_what_binds_it(longshore: Command) -> None:
    options = ("--tokens", "1e9", "--deadline", "2h", "--cluster", "mine.yaml", "--json", "--table")
    message = json.loads(longshore("plan", "find", "model.csv", *options).out)
    plan = message["plan"]
    assert plan["gpus"] == plan["data"] * plan["pipeline"] * plan["tensor"]
    assert plan["step_s"] == pytest.approx(sum(plan["times"].values()))
    assert plan["bound_s"] == pytest.approx(plan["total_s"] * DEFAULT.accuracy.bound_factor)
    assert message["meets_deadline"] == (plan["bound_s"] <= 7200.0)
    assert sum(it["last_layer"] - it["first_layer"] + 1 for it in plan["sub_tasks"]) == 25
    verdicts = {row["verdict"].split(":")[0] for row in message["table"]}
    assert {"meets the deadline", "time"} <= verdicts
    steps = [row["step_s"] for row in message["table"] if "step_s" in row]
    assert steps == sorted(steps)


def parts_of(name: str, content: object) -> Iterator[tuple[str, set[str]]]:
    """Yield the fields of each object in an answer, with the name of the field that holds it."""
    for it in content if isinstance(content, list) else [content]:
        if isinstance(it, dict):
            yield name, set(it)
            if name != "hardware":  # which is a file of its own
                for inner, value in it.items():
                    yield from parts_of(inner, value)


@pytest.mark.usefixtures("folder")
def test_the_page_has_every_field_of_the_answer_for_programs_and_no_other(longshore: Command, folder: Path) -> None:
    (folder / "small.yaml").write_text(CLUSTER.replace("80e9", "6e9"))
    (folder / "tiny.yaml").write_text(CLUSTER.replace("80e9", "2e9"))
    found: dict[str, set[str]] = {}
    for file, deadline in (("mine.yaml", "24h"), ("mine.yaml", "1h"), ("small.yaml", "24h"), ("tiny.yaml", "24h")):
        options = ("--tokens", "1e10", "--deadline", deadline, "--cluster", file, "--json", "--table")
        for name, fields in parts_of("the whole", json.loads(longshore("plan", "find", "model.csv", *options).out)):
            found.setdefault(name, set()).update(fields)
    del found["hardware"]
    section = (ROOT / "docs" / "planner.md").read_text().split("### The answer for programs")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("|")][2:]
    reported = {
        part: set(re.findall(r"`(\w+)`", fields))
        for parts, fields in rows
        for part in re.findall(r"`(\w+)`", parts) or [parts.strip()]
    }
    assert found == reported


@pytest.mark.usefixtures("folder")
def test_a_table_marks_the_plan_that_was_chosen(longshore: Command) -> None:
    options = ("--tokens", "1e9", "--deadline", "24h", "--cluster", "mine.yaml", "--table")
    done = longshore("plan", "find", "model.csv", *options)
    (row,) = [line for line in done.out.splitlines() if line.rstrip().endswith("meets the deadline: chosen")]
    message = json.loads(longshore("plan", "find", "model.csv", *options, "--json").out)
    (chosen,) = [it for it in message["table"] if it["chosen"]]
    plan = message["plan"]
    assert {name: plan[name] for name in chosen.keys() & plan.keys()} == {
        name: chosen[name] for name in chosen.keys() & plan.keys()
    }
    assert row.split()[:2] == [str(plan["gpus"]), "a100"]


@pytest.mark.usefixtures("folder")
def test_a_table_names_what_binds_a_layout_that_does_not_fit(longshore: Command, folder: Path) -> None:
    (folder / "small.yaml").write_text(CLUSTER.replace("80e9", "6e9"))
    done = longshore("plan", "find", "model.csv", "--samples", "1e5", "--cluster", "small.yaml", "--table")
    assert done.status == 0, done.err
    assert "memory: needs " in done.out
    assert " on a GPU, a100 has 6.0 GB" in done.out


@pytest.mark.usefixtures("folder")
def test_a_missed_deadline_names_the_gap_and_what_is_enough(longshore: Command) -> None:
    done = longshore("plan", "find", "model.csv", "--tokens", "1e10", "--deadline", "1h", "--cluster", "mine.yaml")
    assert done.status == 1
    assert "No plan meets the deadline of 1h 00m. The fastest has a 90% bound of" in done.out
    assert "are enough (data" in done.out


@pytest.mark.usefixtures("folder")
def test_gpus_of_no_more_than_the_limit_are_used(longshore: Command) -> None:
    options = ("--samples", "1e5", "--cluster", "mine.yaml", "--gpus", 3, "--json")
    assert json.loads(longshore("plan", "find", "model.csv", *options).out)["plan"]["gpus"] <= 3


@pytest.mark.few(7)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan find model.csv --cluster mine.yaml", "give either --tokens or --samples"),
        ("plan find model.csv --cluster mine.yaml --tokens 1e9 --samples 5", "give either --tokens or --samples"),
        ("plan find model.csv --cluster mine.yaml --tokens nan", "--tokens"),
        ("plan find model.csv --cluster mine.yaml --tokens inf", "--tokens"),
        ("plan find model.csv --cluster mine.yaml --tokens 0", "--tokens"),
        ("plan find model.csv --cluster mine.yaml --tokens 1e9 --deadline soon", "'soon' is no duration"),
        ("plan find model.csv --cluster mine.yaml --tokens 1e9 --deadline 0s", "too short"),
        ("plan find model.csv --cluster mine.yaml --tokens 1e9 --batch 0", "--batch"),
        ("plan find model.csv --cluster none.yaml --tokens 1e9", "none.yaml: cannot be read"),
        ("plan find none.csv --cluster mine.yaml --tokens 1e9", "none.csv: cannot be read"),
        ("plan find none.py --cluster mine.yaml --tokens 1e9", "none.py: there is no such file"),
        ("plan find mine.yaml:f --cluster mine.yaml --tokens 1e9", "mine.yaml:f: "),
        ("plan find model.csv --cluster mine.yaml --tokens 1e9 --hardware mine.yaml", "unknown key"),
        ("plan find mine.csv --cluster mine.yaml --tokens 1e9", "mine.csv"),
        ("plan calibrate none.csv", "none.csv: cannot be read"),
        ("plan calibrate few.csv", "1 runs are too few for a 90% bound"),
        ("plan calibrate few.csv --out few.csv", "--out: few.csv is also the file of RUNS"),
        ("plan calibrate few.csv --out none/x.yaml", "--out: none/x.yaml: there is no folder none"),
        ("plan calibrate few.csv --peak-flops 0", "--peak-flops"),
        ("plan calibrate few.csv --nic-bandwidth nan", "--nic-bandwidth"),
    ],
)
def test_what_cannot_be_used_is_reported_in_one_line(
    longshore: Command, folder: Path, arguments: str, message: str
) -> None:
    (folder / "few.csv").write_text(HEAD + ROW)
    done = longshore(*arguments.split())
    lines = [line for line in done.err.splitlines() if not line.endswith("...")]
    assert done.status == 2
    assert done.out == ""
    assert message in done.err
    assert sum(line.startswith("longshore: ") for line in lines) == len(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (COLUMNS, "the table has no layer; add a row for each"),
        ("name,parameters\nx,1\n", "forward_flops: there is no such column"),
        (TABLE.replace("1e8,0", "1e8,nan"), "model.csv:2:forward_flops: 'nan' is not a number"),
        (TABLE.replace("1e8,0", "-5,0"), "model.csv:2:parameters: '-5' is not between 0 and 1e+30"),
        (TABLE.replace("1e8,0", "1e99,0"), "model.csv:2:parameters: '1e99' is not between 0 and 1e+30"),
        (TABLE.replace("4194304,0,0,1024", "4194304,0,7,1024"), "is_block: '7' is not between 0 and 1"),
        (TABLE.replace("4194304,0,0,1024", "4194304,0.5,0,1024"), "heads: '0.5' is not a whole number"),
    ],
)
def test_a_table_of_layers_that_is_invalid_is_reported(
    longshore: Command, folder: Path, text: str, message: str
) -> None:
    (folder / "model.csv").write_text(text)
    done = longshore("plan", "find", "model.csv", "--tokens", "1e9", "--cluster", "mine.yaml")
    assert done.status == 2
    assert message in done.err


@pytest.mark.full
def test_a_calibration_writes_a_profile_that_plans_use(longshore: Command, folder: Path) -> None:
    runs = made_runs(24, 0.05)
    names = (
        "gpus",
        "batch",
        "micro_batch",
        "hidden",
        "layers",
        "sequence",
        "tensor",
        "pipeline",
        "data",
        "iteration_s",
    )
    rows = zip(*(getattr(runs, name) for name in names), strict=True)
    (folder / "runs.csv").write_text(",".join(names) + "\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    done = longshore("plan", "calibrate", "runs.csv", "--out", "hardware.yaml", "--name", "ours")
    assert done.status == 0, done.err
    assert done.out.startswith("24 runs. ")
    assert read_hardware(folder / "hardware.yaml").name == "ours"
    reported = longshore(
        "plan", "find", "model.csv", "--tokens", "1e9", "--cluster", "mine.yaml", "--hardware", "hardware.yaml"
    )
    assert "Constants fitted to 24 runs (ours)" in reported.out


def test_a_slower_network_in_the_cluster_file_makes_a_plan_slower(longshore: Command, folder: Path) -> None:
    (folder / "slow.yaml").write_text(CLUSTER.replace("25e9", "1e9"))
    write_hardware(folder / "hardware.yaml", DEFAULT)
    steps = [
        json.loads(longshore("plan", "find", "model.csv", "--samples", "1e5", "--cluster", file, "--json").out)["plan"][
            "step_s"
        ]
        for file in ("mine.yaml", "slow.yaml")
    ]
    assert steps[0] < steps[1]
