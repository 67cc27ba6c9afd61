"""Job files that ask to be planned, as a user submits them."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from longshore.planner.hardware import write_hardware
from tests.command_line import Command
from tests.planner.models import HOST
from tests.scheduler.served import Served, until
from tests.support.processes import PYTHON_PATH

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
GPT = ROOT / "examples" / "plan" / "small_gpt.py"
# The sizes of the example, and smaller ones with which steps take milliseconds.
SIZES, SMALLER = "= 256, 4, 6, 2000, 128", "= 64, 4, 4, 200, 32"
LAYERS = "name,parameters,forward_flops,saved_bytes,output_bytes,heads,is_block\n" + "".join(
    f"block{i},200e6,8e11,600e6,16e6,32,1\n" for i in range(32)
)
LONG = "plan: {model: layers.csv, samples: 1e6, batch: 512}\ncommand: [python, train.py]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "layers.csv").write_text(LAYERS)
    (tmp_path / "broken.py").write_text("def build():\n    raise RuntimeError('no such data')\n")
    return tmp_path


REFUSED = [
    ("plan: 7\n", "job.yaml:1:plan: '7' is no plan; write `plan: {model: train.py:build"),
    ("plan: later\n", "job.yaml:1:plan: 'later' is no plan"),
    ("plan:\ncommand: [x]\n", "job.yaml:1:plan: it is empty"),
    ("plan:\ndeadline:\ncommand: [x]\n", "job.yaml:1:plan: it is empty"),
    ("deadline:\ncommand: [x]\n", "job.yaml:1:deadline: "),
    ("plan: [a]\n", "is no plan"),
    ("deadline: 24h\ncommand: [x]\n", "job.yaml:1:deadline: "),
    ("plan: auto\n", "job.yaml:1:plan: auto takes the model from a command `python -m longshore.stage"),
    ("plan: auto\ncommand: [python, train.py]\n", "job.yaml:1:plan: auto takes the model from a command"),
    ("plan: auto\ncommand: [python, -m, longshore.stage, plan.json, m.py]\n", "auto takes the model from a command"),
    ("plan: auto\ncommand: [python, -m, longshore.stage, '-', m.py, --steps, many]\n", "2:command: its --steps"),
    ("plan: {samples: 5}\n", "job.yaml:1:plan.model: is missing"),
    ("plan: {model: m.py}\n", "give either `samples` or `tokens`"),
    ("plan: {model: m.py, samples: 5, tokens: 5}\n", "give either `samples` or `tokens`"),
    ("plan: {model: m.py, samples: 0}\n", "job.yaml:1:plan.samples: '0' cannot be used; it should be a number from 1"),
    ("plan: {model: m.py, samples: .nan}\n", "plan.samples"),
    ("plan: {model: m.py, sample: 5}\n", "plan.sample: unknown key; did you mean 'samples'?"),
    ("plan: {model: m.py, samples: 5, batch: 1.5}\n", "plan.batch: '1.5' cannot be used"),
    ("plan: {model: m.py, samples: 5, degrees: 2x2}\n", "plan.degrees: '2x2' cannot be used; it should be data x"),
    ("plan: {model: m.py, samples: 5, deadline: soon}\n", "job.yaml:1:plan.deadline: 'soon' is no duration"),
    ("plan: {model: m.py, samples: 5}\ndeadline: -3\n", "job.yaml:2:deadline: '-3' is too short or too long"),
    ("plan: {model: m.py, samples: 5}\ndeadline: [1]\n", "deadline"),
    ("plan: {model: m.py, samples: 5, deadline: 1h}\ndeadline: 2h\n", "job.yaml:2:deadline: there are two deadlines"),
    ("plan: {model: m.py, samples: 5}\ngpus: 4\n", "job.yaml:2:gpus: the plan decides this"),
    ("plan: {model: m.py, samples: 5}\nshape: {nodes: 1, gpus_per_node: 2}\n", "job.yaml:2:shape: the plan decides"),
    ("plan: {model: m.py, samples: 5}\nname: Not Good\n", "job.yaml:2:name: 'Not Good' cannot be used"),
    ("plan: {model: m.csv, samples: 5}\n", "job.yaml:1:plan.model: a table of layers cannot be trained; give"),
    ("command: [x]\nplan: {data: 1, pipeline: 2, micro_batch: 1, batch: 1, stages: [{layers: [a]}]}\n", "there are 1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_a_request_that_cannot_be_used_is_one_line(
    longshore: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LONGSHORE_URL", "http://127.0.0.1:9")  # no scheduler is asked
    (folder / "job.yaml").write_text(text)
    done = longshore("submit", "job.yaml")
    printed = [line for line in done.err.splitlines() if line.startswith("longshore: ")]
    assert done.status == 2, done.err
    assert done.out == ""
    assert len(printed) == 1, done.err
    assert says in printed[0], printed[0]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A scheduler of 4,096 GPUs, on which nothing runs."""
    it = Served(tmp_path_factory.mktemp("large"), "--cluster", str(ROOT / "examples" / "large.yaml"))
    it.start()
    yield it
    it.end()


def dry_run(served: Served, folder: Path, text: str) -> tuple[dict[str, Any], str]:
    (folder / "job.yaml").write_text(text)
    done = served.call("submit", str(folder / "job.yaml"), "--dry-run", "--json")
    return json.loads(done.stdout)["spec"], done.stderr


@pytest.mark.full
def test_the_cluster_is_reported_by_type(large: Served) -> None:
    found = large.ask("/v1/cluster")
    assert {it["name"]: (it["nodes"], it["gpus_in_service"]) for it in found["node_types"]} == {
        "a100": (384, 3072), "h100": (128, 1024),
    }  # fmt: skip
    large.call("node", "drain", large.ask("/v1/nodes")[0]["name"])
    assert large.ask("/v1/cluster")["node_types"][0]["gpus_in_service"] == 3064
    large.call("node", "resume", large.ask("/v1/nodes")[0]["name"])


@pytest.mark.full
def test_a_deadline_is_met_with_fewest_gpus_of_one_type(large: Served, folder: Path) -> None:
    soon, said = dry_run(large, folder, LONG + "deadline: 4h\n")
    late, _ = dry_run(large, folder, LONG + "deadline: 10d\n")
    assert late["gpus"] < soon["gpus"]
    assert "meet the deadline of 4h 00m" in said
    for spec in (soon, late):
        plan = spec["plan"]
        assert len(spec["needs"]["gpu_types"]) == 1
        assert plan["data"] * plan["pipeline"] * plan.get("tensor", 1) == spec["gpus"]
        assert plan["iteration"]["compute_s"] > 0.0
        assert plan["iteration"]["gradient_bytes"] > 0.0 or plan["data"] == 1
        assert plan["step_s"] * plan["iterations"] * plan["bound_factor"] <= plan["deadline_s"]
        if plan.get("tensor", 1) > 1:
            assert spec["shape"]["gpus_per_node"] % plan["tensor"] == 0
            assert spec["shape"]["nodes"] * spec["shape"]["gpus_per_node"] == spec["gpus"]


@pytest.mark.full
def test_accepted_types_and_a_bound_are_heeded(large: Served, folder: Path) -> None:
    text = LONG.replace("batch: 512", "batch: 512, gpus: 64") + "needs: {gpu_types: [a100]}\nestimate_s: 77\n"
    spec, _ = dry_run(large, folder, text)
    assert spec["needs"]["gpu_types"] == ["a100"]
    assert spec["gpus"] <= 64
    assert spec["estimate_s"] == 77.0  # the file goes before the plan


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LONG + "deadline: 1s\n", "job.yaml:1:plan: No plan meets the deadline of 1s."),
        (LONG + "needs: {gpu_types: [tpu]}\n", "job.yaml:1:plan.gpus: no GPU of type tpu is in service"),
        (LONG.replace("512", "512, degrees: 7x1x1"), "job.yaml:1:plan.degrees: no plan has the degrees 7x1x1"),
        ("plan: {model: absent.py, samples: 5}\n", "absent.py: there is no such file"),
        ("plan: {model: broken.py, samples: 5}\n", "no such data"),
        (LONG.replace("samples: 1e6", "samples: 1e6, hardware: absent.yaml"), "absent.yaml"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_nothing_is_submitted(
    large: Served, folder: Path, text: str, says: str
) -> None:
    (folder / "job.yaml").write_text(text)
    done = large.call("submit", str(folder / "job.yaml"), check=False)
    printed = [line for line in done.stderr.splitlines() if line.startswith("longshore: ")]
    assert done.returncode == 2, done.stderr
    assert len(printed) == 1, done.stderr
    assert says in printed[0]
    assert large.ask("/v1/jobs")["jobs"] == []


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    it = Served(tmp_path_factory.mktemp("small"))
    it.start()
    write_hardware(it.folder / "here.yaml", HOST)
    assert GPT.read_text().count(SIZES) == 1
    (it.folder / "train.py").write_text(GPT.read_text().replace(SIZES, SMALLER))
    (it.folder / "gpt.py").write_text(GPT.read_text())
    yield it
    it.end()


def variables() -> dict[str, str]:
    """Return those of a user whose shell has Longshore installed: python is that of these tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": PYTHON_PATH}


@pytest.mark.full
@pytest.mark.parametrize("degrees", ["1x2x1", "2x2x1"])
def test_a_planned_job_runs_and_tells_of_its_sub_tasks(small: Served, degrees: str) -> None:
    wish = {"model": "train.py:build", "samples": 96, "batch": 8, "hardware": "here.yaml", "degrees": degrees}
    (small.folder / "job.yaml").write_text(json.dumps({"plan": wish, "deadline": "1h", "environment": variables()}))
    job = small.submit("job.yaml")
    until(lambda: small.state(job) in ("running", "succeeded", "failed"))
    ranks = int(degrees[0]) * int(degrees[2])

    def found() -> dict[str, Any]:
        found: dict[str, Any] = small.ask(f"/v1/jobs/{job}/sub-tasks")
        return found

    first = found()
    assert [it["rank"] for it in first["tasks"]] == list(range(ranks))
    assert len({(it["node"], it["gpu"]) for it in first["tasks"]}) == ranks
    assert first["iterations"] == 12
    said = small.call("status", job).stdout
    assert "WAITS FOR" in said
    assert small.ended(job) == "succeeded", small.call("logs", job).stdout
    assert "step 12 of 12: loss" in small.call("logs", job, "--rank", "all").stdout
    spec = small.ask(f"/v1/jobs/{job}")["spec"]
    assert spec["command"] == [
        "python",
        "-m",
        "longshore.stage",
        "-",
        "train.py:build",
        "--steps",
        "12",
        "--checkpoints",
        "checkpoints",
    ]


@pytest.mark.full
def test_what_is_offloaded_of_a_planned_job_is_reported(small: Served) -> None:
    wish = {"model": "gpt.py:build", "samples": 24000, "batch": 8, "hardware": "here.yaml", "degrees": "2x1x1"}
    command = ["python", "-m", "longshore.stage", "-", "gpt.py:build", "--steps", "3000", "--offload", "auto"]
    job_file = {"plan": wish, "command": command, "environment": variables()}
    (small.folder / "job.yaml").write_text(json.dumps(job_file))
    job = small.submit("job.yaml")

    def away() -> list[int | None]:
        return [it["away_bytes"] for it in small.ask(f"/v1/jobs/{job}/sub-tasks")["tasks"]]

    until(lambda: all(away()))
    # Two moments of Adam for each of 5.8 million parameters; these may be away, too.
    assert all(46e6 <= it <= 70e6 for it in away() if it)
    said = small.call("status", job).stdout
    assert "AWAY" in said
    assert re.search(r" (46|69)\.\d MB", said), said
    small.cancel(job)
    assert small.ended(job) == "cancelled"


PACED = """\
import time
import train

build = train.build

def data(first, samples):
    time.sleep(0.1)
    return train.data(first, samples)
"""


@pytest.mark.full
@pytest.mark.timeout(100)  # it is planned, started, and started again after a rest
def test_a_planned_job_that_loses_a_rank_goes_on_from_its_last_checkpoint(small: Served) -> None:
    (small.folder / "paced.py").write_text(PACED)
    wish = {"model": "paced.py:build", "samples": 240, "batch": 8, "hardware": "here.yaml", "degrees": "1x2x1"}
    command = ["python", "-m", "longshore.stage", "-", "paced.py:build", "--steps", "30"]
    command += ["--checkpoints", "kept", "--checkpoint-s", "0"]
    job_file = {"plan": wish, "command": command, "environment": variables()}
    (small.folder / "job.yaml").write_text(json.dumps(job_file))
    job = small.submit("job.yaml")

    until(lambda: any((small.folder / "kept" / job).glob("step-*")))
    os.kill(rank_of(f"ls-{job}-1", 1), signal.SIGKILL)
    assert small.ended(job) == "succeeded", small.call("logs", job).stdout
    assert [it["outcome"] for it in small.ask(f"/v1/jobs/{job}/attempts")] == ["ambiguous", "success"]
    log = small.call("logs", job, "--rank", "all").stdout
    saved = small.ask(f"/v1/jobs/{job}/checkpoints")
    steps = {it["attempt"]: it["step"] for it in reversed(saved)}
    assert f"a checkpoint has {steps[1] + 1} of 30 steps" in log
    assert f"step {steps[1] + 2} of 30: loss" in log
    assert f"step {steps[1] + 1} of 30: loss" not in log
    kept = sorted(it.name for it in (small.folder / "kept" / job).iterdir())
    assert (len(kept), kept[-1]) == (2, "step-000000029-a2")


def rank_of(attempt: str, rank: int) -> int:
    """Return the process id of a rank that trains."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (process / "environ").read_bytes().split(b"\0")
            if {f"LONGSHORE_ATTEMPT={attempt}".encode(), f"RANK={rank}".encode()} <= set(said):
                return int(process.name)
    raise AssertionError(f"rank {rank} of {attempt} does not run")


SLOW = """\
import os, time
from pathlib import Path
import counting

build = counting.build

def data(first, samples):
    time.sleep(0.6 if Path(f"slow-{os.environ.get('LONGSHORE_RING_MEMBER')}").exists() else 0.08)
    return counting.data(first, samples)
"""


@pytest.mark.full
def test_a_replica_of_a_plan_gets_a_backup_and_its_sub_task_is_where_that_computes(small: Served) -> None:
    (small.folder / "counting.py").write_text((ROOT / "tests/planner/execution/counting.py").read_text())
    (small.folder / "slow.py").write_text(SLOW)
    wish = {"model": "slow.py:build", "samples": 8e6, "batch": 8, "hardware": "here.yaml", "degrees": "2x1x1"}
    job_file = {"plan": wish, "failover": "switch", "backups": 1, "environment": variables()}
    (small.folder / "job.yaml").write_text(json.dumps(job_file))
    job = small.submit("job.yaml")

    def places() -> list[tuple[str, int]]:
        return [(it["node"], it["gpu"]) for it in small.ask(f"/v1/jobs/{job}/sub-tasks")["tasks"]]

    def relieved() -> list[int]:
        ring = small.ask(f"/v1/jobs/{job}/ring")
        return ring["relieved"] if ring and ring["phase"] == "running" else [-1]

    until(lambda: relieved() == [])
    before = places()
    (small.folder / "slow-1").touch()
    until(lambda: relieved() == [1])
    until(lambda: places()[0] == before[0] and places()[1] != before[1])
    assert places()[1][0] != before[1][0]  # another node
    (small.folder / "slow-1").unlink()
    until(lambda: relieved() == [] and places() == before)
    until(lambda: all(it["computed_s"] for it in small.ask(f"/v1/jobs/{job}/sub-tasks")["tasks"]))
    small.cancel(job)
    assert small.ended(job) == "cancelled"


@pytest.mark.full
@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"degrees": "1x2x1"}, "all ranks do the same, and those of 1x2x1 do not; write Dx1x1"),
        ({"degrees": "2x1x1"}, ""),
    ],
)
def test_only_data_parallel_plans_are_looked_at_for_a_ring(small: Served, wish: dict[str, Any], says: str) -> None:
    whole = {"model": "train.py:build", "samples": 96, "batch": 8, "hardware": "here.yaml", **wish}
    (small.folder / "job.yaml").write_text(json.dumps({"plan": whole, "failover": "switch", "spares": 1}))
    done = small.call("submit", "job.yaml", "--dry-run", "--json", check=False)
    assert says in done.stderr
    if says:
        assert done.returncode == 2
    else:
        spec = json.loads(done.stdout)["spec"]
        assert (spec["plan"]["data"], spec["plan"]["pipeline"], spec["gpus"]) == (2, 1, 2)


@pytest.mark.full
def test_a_plan_leaves_gpus_for_spares(small: Served) -> None:
    gpus = small.ask("/v1/cluster")["node_types"][0]["gpus_in_service"]
    wish = {"model": "train.py:build", "samples": 96, "batch": 8, "hardware": "here.yaml"}
    for spares, says in ((gpus - 2, ""), (gpus, f"no GPU beside {gpus} spares is in service")):
        job_file = {"plan": wish, "failover": "switch", "spares": spares}
        (small.folder / "job.yaml").write_text(json.dumps(job_file))
        done = small.call("submit", "job.yaml", "--dry-run", "--json", check=False)
        if says:
            assert done.returncode == 2
            assert says in done.stderr
        else:
            assert json.loads(done.stdout)["spec"]["gpus"] <= 2


@pytest.mark.full
def test_it_is_reported_that_other_plans_may_fit_without_a_ring(large: Served, folder: Path) -> None:
    (folder / "layers.csv").write_text(LAYERS.replace("200e6", "2000e6"))
    (folder / "job.yaml").write_text(LONG + "failover: switch\n")
    done = large.call("submit", str(folder / "job.yaml"), check=False)
    assert done.returncode == 2
    assert "With `failover: switch` only data-parallel plans without ZeRO are considered" in done.stderr
