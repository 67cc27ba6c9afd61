"""The command line as a user meets it: bad input in this process, the main paths as processes of their own."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from longshore.cluster.workloads.generator import PROFILES
from longshore.commands import options
from tests.checkout import DATA, HETERO64, SMALL, needs_data
from tests.command_line import Command, process
from tests.packages import install
from tests.schedule_checker import check_schedule
from tests.support import processes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with files that are not what they should be."""
    (tmp_path / "broken.yaml").write_text("a: [1\nb: }")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "binary.zip").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "one.csv").write_text("id,gpus,work_s,submit_s\na,1,100,0\n")
    (tmp_path / "twins.csv").write_text("id,gpus,work_s,submit_s\na,1,100,0\na,2,100,5\na#2,1,50,9\na,1,9,9\n")
    (tmp_path / "large.csv").write_text("id,gpus,work_s,submit_s\na,1,100,0\nbig,65,100,5\n")
    return tmp_path


def schedule(*arguments: object, at: Path) -> list[object]:
    written = ("--events", at / "events.jsonl", "--jobs-out", at / "jobs.json", "--cluster-out", at / "cluster.json")
    return ["simulate", *arguments, *written]


def checked(at: Path) -> Counter[str]:
    """Check the schedule in a folder, and return how often each kind of event is in it."""
    events = [json.loads(line) for line in (at / "events.jsonl").read_text().splitlines()]
    jobs: list[dict[str, Any]] = json.loads((at / "jobs.json").read_text())
    check_schedule(events, jobs, json.loads((at / "cluster.json").read_text()))
    return Counter(event["event"] for event in events)


def faulty(cluster: Path, at: Path) -> Path:
    """Return a cluster file with faults that stop jobs every few hours."""
    text = cluster.read_text().replace("1.8518518518518518e-7", "2e-6").replace("1.2e-6", "1e-4")
    copy = at / cluster.name
    copy.write_text(text)
    return copy


@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (HETERO64, "--policy pack"),
        (HETERO64, "--policy eft-hazard --order easy --seed 3"),
        (HETERO64, "--policy patient --waiting --order shortest --ageing 24h --estimates log-normal"),
        (SMALL, "--policy spread --order easy-shortest --estimates class-mean"),
        (SMALL, "--policy pack --order easy-shortest --estimates history"),
        (SMALL, "--policy consolidate --waiting"),
        (SMALL, "--policy replacement --load 0.5 --max-gpus 24"),
    ],
)
def test_anybody_can_check_a_schedule(longshore: Command, tmp_path: Path, cluster: Path, options: str) -> None:
    done = longshore(*schedule("--cluster", faulty(cluster, tmp_path), "--jobs", 120, *options.split(), at=tmp_path))
    assert done.status == 0, done.err
    events = checked(tmp_path)
    assert events["submit"] == events["finish"] == 120
    assert events["stop"] > 0
    assert events["start"] == 120 + events["stop"]


@needs_data
def test_real_jobs_meet_real_faults(longshore: Command, tmp_path: Path) -> None:
    trace, faults = DATA / "traces" / "itp_cluster03.csv", DATA / "faults" / "fault_trace.json"
    options = ("--cluster", HETERO64, "--trace", trace, "--faults", faults, "--max-gpus", 48)
    done = longshore(*schedule(*options, "--load", 0.7, "--seed", 5, at=tmp_path))
    assert done.status == 0, done.err
    assert checked(tmp_path)["fault"] > 0


def test_the_same_command_writes_the_same_files_in_another_process(longshore: Command, tmp_path: Path) -> None:
    places = tmp_path / "a", tmp_path / "b"
    for place in places:
        place.mkdir()
    options = ("--cluster", faulty(HETERO64, tmp_path), "--policy", "random", "--jobs", 50, "--seed", 7)
    longshore(*schedule(*options, at=places[0]))
    processes.run(process(*schedule(*options, at=places[1])), check=True, capture_output=True)
    for name in ("events.jsonl", "jobs.json", "cluster.json"):
        assert (places[0] / name).read_bytes() == (places[1] / name).read_bytes()


def test_jobs_of_one_id_are_distinguished(longshore: Command, folder: Path) -> None:
    done = longshore(*schedule("--cluster", HETERO64, "--trace", folder / "twins.csv", at=folder))
    assert "2 jobs have the id of an earlier one; such as 'a' is written as 'a#3'" in done.err
    assert [job["id"] for job in json.loads((folder / "jobs.json").read_text())] == ["a", "a#3", "a#2", "a#4"]
    assert checked(folder)["finish"] == 4


def test_a_cluster_without_checkpoints_is_written_as_json(longshore: Command, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(HETERO64.read_text().replace("checkpoint_s: 3600", "checkpoint_s: .inf"))
    done = longshore(*schedule("--cluster", cluster, "--jobs", 120, at=tmp_path))
    assert done.status == 0, done.err
    assert "Infinity" not in (tmp_path / "cluster.json").read_text()
    assert checked(tmp_path)["stop"] > 0


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("simulate --cluster {broken.yaml}", "broken.yaml:2: not YAML"),
        ("simulate --cluster {empty}", "the file is empty"),
        ("simulate --cluster {binary}", "is not UTF-8"),
        ("simulate --cluster {.}", "Is a directory"),
        ("simulate --cluster {nowhere}", "No such file"),
        ("simulate --cluster {HETERO64} --trace {.}", "Is a directory"),
        ("simulate --cluster {HETERO64} --trace {empty}", "the file is empty"),
        ("simulate --cluster {HETERO64} --trace {binary}", "is not UTF-8"),
        ("simulate --cluster {HETERO64} --trace {text}", "no format begins with 'hello'"),
        ("simulate --cluster {HETERO64} --trace {large.csv}", "job big asks 65 GPUs"),
        ("simulate --cluster {HETERO64} --faults {text}", "is not a JSON list"),
        ("simulate --cluster {HETERO64} --faults {.}", "Is a directory"),
        ("simulate --cluster {HETERO64} --policy pakc", "did you mean 'pack'?"),
        ("simulate --cluster {HETERO64} --policy {nowhere.zip}", "there is no such checkpoint"),
        ("simulate --cluster {HETERO64} --policy {binary.zip}", "is no checkpoint or is damaged"),
        ("simulate --cluster {HETERO64} --events {.}", "--events: "),
        ("simulate --cluster {HETERO64} --events {no/where}", "there is no folder"),
        ("simulate --cluster {HETERO64} --events {x} --jobs-out {x}", "is also the file of --events"),
        ("simulate --cluster {HETERO64} --cluster-out {HETERO64}", "is also the file of --cluster"),
        ("simulate --cluster {HETERO64} --profile itpp", "--profile: there is no profile 'itpp'; did you mean 'itp'?"),
        ("simulate --cluster {HETERO64} --trace {one.csv} --profile itp", "--profile: a trace has its own jobs"),
        ("simulate --cluster {HETERO64} --arrivals batch --load 1", "--load: a batch submits all jobs at once"),
        ("evaluate --trace {one.csv} --arrivals poisson", "--arrivals: a trace has its own jobs"),
        ("evaluate --cluster {HETERO64} --profile x", "known: philly, philly-long, itp, itp-short"),
        ("evaluate --profile itp", "--profile: the preset draws its own jobs; give --cluster"),
        ("simulate --cluster {HETERO64} --policy rollout:patient@20", "as in rollout:patient@20ms"),
        ("simulate --cluster {HETERO64} --policy rollout:pat", "did you mean 'patient'?"),
        ("evaluate --policy {.}", "is a folder; a learned policy is named by its checkpoint, such as "),
        ("evaluate --policy {binary.zip}", "is no checkpoint or is damaged"),
        ("evaluate --report {no/report.html}", "--report: "),
        ("evaluate --json {.}", "is a folder"),
        ("evaluate --faults {text}", "give --cluster"),
        ("evaluate --load 1", "--load: the preset draws its own arrivals"),
        ("evaluate --runs 3", "--runs: "),
        ("evaluate --max-gpus 8", "--max-gpus: the preset's jobs need 32 GPUs at most"),
        ("evaluate --cluster {HETERO64} --workloads 100000 --runs 10000", "lower --workloads, --runs or --jobs"),
        ("train --steps inf", "--steps: inf is no number of steps"),
        ("train --steps 1e400", "--steps: inf is no number of steps"),
        ("train --preset hetreo64", "did you mean 'hetero64'?"),
        ("train --network cnn", "--network: there is no network 'cnn'; known: candidates, layers, mlp, set"),
        ("train --algo dqn", "--algo: there is no algo 'dqn'"),
        ("train --reward jtc", "--reward: there is no reward 'jtc'; did you mean 'jct'?"),
        ("train --action rack", "--action: "),
        ("train --observation source", "known: full, patent, patent-literal"),
        ("train --preset philly", "--trace: "),
        ("train --preset philly --trace {nowhere} --logdir {runs}", "is no file"),
        ("train --trace {one.csv}", "too few to train on the first"),
        ("train --preset hetero64 --trace {one.csv}", "hetero64 draws its own jobs"),
        ("train --logdir {empty}", "cannot write here"),
        ("trace inspect {nowhere}", "No such file"),
        ("trace inspect {one.csv} --format csv", "there is no trace format 'csv'"),
        ("trace convert {one.csv} {one.csv}", "is also the file of FILE"),
        ("trace convert {one.csv} {no/where.csv}", "there is no folder"),
        ("trace convert {one.csv} {out.xlsx}", "out.xlsx: only csv is written, not '.xlsx'; end it in .csv"),
        ("trace sample {one.csv} {out.parquet} --jobs 1", "OUTPUT: "),
        ("trace sample {one.csv} {out.csv}", "has 1 jobs, a window 96"),
    ],
)
def test_bad_input_is_answered_in_one_line(longshore: Command, folder: Path, command: str, says: str) -> None:
    names = {word[1:-1] for word in command.split() if word.startswith("{")}
    places = {name: str(HETERO64 if name == "HETERO64" else folder / name) for name in names}
    done = longshore(*(places.get(word.strip("{}"), word) for word in command.split()))
    assert done.status == 2
    *before, error = done.err.splitlines()
    assert error.startswith("longshore: ")
    assert says in error
    assert all(line.endswith(" ...") or " is read as " in line for line in before)
    assert not any(line.startswith(("simulating", "running")) for line in before)
    assert done.out == ""
    assert not (folder / "runs").exists()


def test_an_overloaded_cluster_is_warned_of(longshore: Command) -> None:
    done = longshore("simulate", "--cluster", HETERO64, "--jobs", 600, "--load", 1.5)
    assert done.status == 0
    assert "longshore: warning: overload: jobs arrive with 1.50 times the work" in done.err
    assert "longshore: warning: overload: under pack the queue grew" in done.err
    assert "overload" not in longshore("simulate", "--cluster", HETERO64, "--jobs", 600, "--load", 0.5).err


@pytest.mark.parametrize("name", ["rollout:patient", "rollout:patient@2ms"])
def test_rollouts_are_a_policy_like_any_other(longshore: Command, name: str) -> None:
    done = longshore("simulate", "--cluster", HETERO64, "--jobs", 12, "--waiting", "--policy", name)
    assert done.status == 0, done.err
    assert "12 jobs on 64 GPUs under rollout:patient" in done.out


@pytest.mark.parametrize(("options", "order"), [((), ["1", "3", "2"]), (("--estimates", "exact"), ["1", "2", "3"])])
def test_estimates_are_the_traces_own_unless_others_are_chosen(
    longshore: Command, tmp_path: Path, options: tuple[str, ...], order: list[str]
) -> None:
    trace = tmp_path / "jobs.swf"  # each takes all GPUs; the second is shorter than the third, but asked for more time
    trace.write_text(
        "".join(
            f"{job} {submit_s} -1 {run_s} 64 -1 -1 64 {asked_s} -1 1 -1 -1 -1 -1 -1 -1 -1\n"
            for job, submit_s, run_s, asked_s in ((1, 0, 100, 100), (2, 1, 50, 900), (3, 1, 60, 80))
        )
    )
    options = ("--order", "shortest", *options)
    done = longshore(*schedule("--cluster", HETERO64, "--trace", trace, *options, at=tmp_path))
    assert done.status == 0, done.err
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["job"] for event in events if event["event"] == "start"] == order


def test_generated_jobs_look_like_the_profile_and_arrive_as_chosen(longshore: Command, tmp_path: Path) -> None:
    def jobs(*options: str) -> list[dict[str, Any]]:
        done = longshore(*schedule("--cluster", HETERO64, "--jobs", 60, *options, at=tmp_path))
        assert done.status == 0, done.err
        drawn: list[dict[str, Any]] = json.loads((tmp_path / "jobs.json").read_text())
        return drawn

    plain, named = jobs(), jobs("--profile", "philly", "--arrivals", "profile")
    assert plain == named
    batch = jobs("--arrivals", "batch")
    assert {job["submit"] for job in batch} == {0.0}
    assert [job["work"] for job in batch] == [job["work"] for job in plain]
    assert [job["work"] for job in jobs("--profile", "itp")] != [job["work"] for job in plain]


def test_a_comparison_on_generated_jobs_describes_them(longshore: Command, tmp_path: Path) -> None:
    options = ("--cluster", SMALL, "--policy", "pack", "--no-heuristics", "--workloads", 1)
    written = tmp_path / "figures.json"
    done = longshore("evaluate", *options, "--profile", "itp-short", "--arrivals", "batch", "--json", written)
    assert done.status == 0, done.err
    document = json.loads(written.read_text())
    assert document["facts"]["jobs"] == "drawn from the profile itp-short, arrivals batch"
    assert document["objective"] == "makespan_s"


def test_every_profile_is_named_by_the_help() -> None:
    named = options.ProfileOption.__metadata__[0].help  # type: ignore[attr-defined]
    assert all(name in named for name in PROFILES)


def test_a_trace_is_converted_sampled_and_inspected(longshore: Command, folder: Path) -> None:
    converted, window = folder / "converted.csv", folder / "window.csv"
    assert "4 jobs" in longshore("trace", "convert", folder / "twins.csv", converted).out
    assert longshore("trace", "sample", converted, window, "--jobs", 2, "--seed", 1).status == 0
    shown = longshore("trace", "inspect", window, "--gpus", 8).out
    assert [line.split()[0] for line in shown.splitlines()][:2] == ["format", "jobs"]
    assert "2 (0 rows dropped)" in shown


def test_policies_are_listed_also_when_one_of_them_is_broken(
    longshore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "theirs", monkeypatch, "policies", {"broken": "nowhere:POLICY"})
    done = longshore("policy", "list")
    assert done.status == 0
    assert "pack " in done.out
    assert "broken           cannot be used: " in done.out
