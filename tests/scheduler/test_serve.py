"""The command line as a user calls it, against a real scheduler on a port of the loopback interface."""

import json
import signal
import subprocess
from pathlib import Path

from .served import LONGSHORE, SERVE, Served, until


def test_a_command_runs_once_on_each_gpu_that_it_was_given(served: Served) -> None:
    job = served.submit("--gpus", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on gpu $CUDA_VISIBLE_DEVICES")

    told = served.ended(job)

    assert "succeeded" in told
    assert "rack0-node0:0,1" in told
    assert served.call("logs", job).stdout == "rank 0 of 2 on gpu 0\n"
    assert served.call("logs", job, "--rank", "1").stdout == "rank 1 of 2 on gpu 1\n"


def test_a_placement_is_explained(served: Served) -> None:
    job = served.submit("--gpus", "2", "--", "true")
    served.ended(job)

    told = served.call("explain", job).stdout

    assert "rack0-node0:0,1, 1.00 x its estimate" in told
    assert "chosen by patient in" in told


def test_a_job_that_fails_says_why(served: Served) -> None:
    told = served.ended(served.submit("--", "sh", "-c", "exit 3"))

    assert "state      failed\ncause      rank 0 ended with exit code 3\n" in told


def test_a_program_that_is_not_there_is_refused_by_name(served: Served) -> None:
    told = served.ended(served.submit("--", "no-such-program"))

    assert "failed" in told
    assert "no-such-program" in told


def test_a_job_is_cancelled_while_it_runs_and_its_gpus_are_free_again(served: Served) -> None:
    job = served.submit("--gpus", "16", "--", "sleep", "1000")
    until(lambda: served.state(job) == "running")

    served.call("cancel", job)

    assert "cancelled" in served.ended(job)
    assert served.call("nodes").stdout.count("4 of 4 slots free") == 4


def test_jobs_outlive_a_scheduler_that_is_killed_and_the_next_one_goes_on_with_them(served: Served) -> None:
    ends = served.submit("--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo done")
    waits = served.submit("--gpus", "16", "--", "true")
    until(lambda: served.state(ends) == "running")

    served.end(signal.SIGKILL)
    (served.folder / "go").touch()
    served.start()

    served.ended(ends)
    assert [it["number"] for it in served.told("status", ends)["attempts"]] == [1]
    assert "succeeded" in served.ended(waits)


def test_a_policy_that_cannot_be_loaded_is_one_line_and_nothing_is_served(tmp_path: Path) -> None:
    (tmp_path / "torn.zip").write_bytes(b"PK")

    line = [*LONGSHORE, *SERVE, "--policy", "torn.zip"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    loading, error = done.stderr.splitlines()
    assert loading == "loading torn.zip ..."
    assert error.startswith("longshore: policy 'torn.zip' cannot be loaded: torn.zip")


def test_what_cannot_be_asked_for_is_one_line(served: Served) -> None:
    too_large = served.call("submit", "--gpus", "17", "--", "true", check=False)
    unknown = served.call("status", "nobody", check=False)

    assert (too_large.returncode, too_large.stderr.strip()) == (
        2, "longshore: the job asks for 17 GPUs, the cluster has 16",
    )  # fmt: skip
    assert (unknown.returncode, unknown.stderr.strip()) == (2, "longshore: there is no job 'nobody'")


def test_a_job_is_held_and_released(served: Served) -> None:
    job = served.submit("--gpus", "16", "--", "sleep", "1000")
    until(lambda: served.state(job) == "running")

    served.call("hold", job)
    until(lambda: served.state(job) == "held")
    assert "it is held until its owner releases it" in served.call("status", job).stdout
    served.call("release", job)

    until(lambda: served.state(job) == "running")
    assert len(served.told("status", job)["attempts"]) == 2


def test_a_dry_run_submits_nothing(served: Served) -> None:
    told = served.call("submit", "--dry-run", "--gpus", "2", "--", "true").stdout

    assert told == "it can be submitted: 0 jobs before it, 16 GPUs free (they would do)\n"
    assert served.call("queue").stdout == "no jobs are running or waiting\n"


def test_options_go_before_what_a_job_file_says(served: Served) -> None:
    (served.folder / "train.yaml").write_text(
        "name: first\ngpus: 2\ncommand: [python, train.py]\nlimit_s: 60\nenvironment: {A: x, B: y}\n"
    )

    plain = served.told("submit", "train.yaml", "--dry-run")["spec"]
    line = "--gpus 8 --name second --priority 5 --limit 2h --estimate 90m --folder there --env B=z --env C=w"
    changed = served.told("submit", "train.yaml", *line.split(), "--dry-run")["spec"]
    command = ("--", "python", "eval.py", "--json")
    other = json.loads(served.call("submit", "train.yaml", "--dry-run", "--json", *command).stdout)["spec"]

    assert (plain["name"], plain["gpus"], plain["limit_s"], plain["folder"]) == ("first", 2, 60.0, str(served.folder))
    named = ("name", "gpus", "priority", "limit_s", "estimate_s", "folder", "command")
    assert tuple(changed[name] for name in named) == (
        "second", 8, 5, 7200.0, 5400.0, str(served.folder / "there"), ["python", "train.py"],
    )  # fmt: skip
    assert changed["environment"] == ["A", "B", "C", "PATH"]
    assert (other["command"], other["name"]) == (["python", "eval.py", "--json"], "first")


def test_variables_of_options_reach_the_job(served: Served) -> None:
    served.environment["FROM_HERE"] = "there"
    job = served.submit("--env", "A=1 2", "--env", "FROM_HERE", "--", "sh", "-c", 'echo "$A $FROM_HERE"')

    assert served.call("wait", job).stdout == f"{job}  succeeded  all ranks ended with exit code 0\n"
    assert served.call("logs", job).stdout == "1 2 there\n"


def test_the_lists_say_where_jobs_run_and_why_they_wait(served: Served) -> None:
    runs = served.submit("--name", "whole", "--gpus", "16", "--", "sleep", "1000")
    until(lambda: served.state(runs) == "running")
    waits = [served.submit("--name", f"part-{gpus}", "--gpus", str(gpus), "--", "true") for gpus in (4, 1)]
    first = served.submit("--name", "urgent", "--priority", "7", "--", "true")

    lines = served.call("queue").stdout.splitlines()

    assert lines[0].split() == [
        "PLACE", "JOB", "NAME", "USER", "STATE", "GPUS", "SUBMITTED", "STARTED", "RAN", "NODES", "OR", "REASON",
    ]  # fmt: skip
    assert [line.split()[:2] for line in lines[1:]] == [["-", runs], ["1", first], ["2", waits[0]], ["3", waits[1]]]
    assert lines[1].endswith("rack0-node0 rack0-node1 rack0-node2 rack0-node3")
    assert lines[3].endswith("it asks for 4 GPUs, and 0 are free")
    assert [job["name"] for job in served.told("queue", "--name", "part-*")] == ["part-4", "part-1"]
    assert [job["id"] for job in served.told("jobs", "--state", "running")] == [runs]
    assert served.told("queue", "--user", "nobody") == []
    newest = served.call("jobs", "--limit", "2").stdout.splitlines()
    assert [line.split()[0] for line in newest] == ["JOB", first, waits[1]]
    told = served.call("status", waits[1]).stdout
    assert "waiting    it asks for 1 GPU, and 0 are free\nplace      3 in the queue\n" in told


def test_several_jobs_are_cancelled_and_one_that_is_not_there_stops_nothing(served: Served) -> None:
    jobs = [served.submit("--gpus", "16", "--", "sleep", "1000") for _ in range(2)]

    done = served.call("cancel", jobs[0], "nobody", jobs[1], check=False)

    assert (done.returncode, done.stderr) == (2, "longshore: there is no job 'nobody'\n")
    assert [line.split()[0] for line in done.stdout.splitlines()] == jobs
    until(lambda: {served.state(job) for job in jobs} == {"cancelled"})


def test_waiting_ends_with_how_the_jobs_did(served: Served) -> None:
    good, bad = served.submit("--", "true"), served.submit("--", "false")
    endless = served.submit("--", "sleep", "1000")

    assert served.call("wait", good, check=False).returncode == 0
    both = served.call("wait", good, bad, "--json", check=False)
    late = served.call("wait", endless, "--timeout", "0s", check=False)

    assert both.returncode == 1
    assert {it["id"]: it["state"] for it in json.loads(both.stdout)} == {good: "succeeded", bad: "failed"}
    assert (late.returncode, late.stderr) == (124, f"longshore: not over by now: {endless}\n")
    assert served.call("wait", "nobody", check=False).returncode == 2


def test_no_scheduler_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    done, waited = (Served(tmp_path).call(*command, check=False) for command in (("queue",), ("wait", "x")))

    assert waited.returncode == 2
    assert done.returncode == 2
    assert done.stderr.startswith("longshore: no scheduler answers at http://127.0.0.1:")
    assert done.stderr.endswith("; start one with `longshore serve`\n")


def test_a_taken_port_is_one_line(served: Served) -> None:
    done = served.call(*SERVE, "--port", str(served.port), "--folder", "other", check=False)

    assert (done.returncode, done.stderr.strip()) == (
        2,
        f"longshore: 127.0.0.1:{served.port} cannot be served at: Address already in use; "
        "is a scheduler running? else choose --port",
    )
    assert not (served.folder / "other").exists()


def test_an_open_scheduler_does_not_serve_others(tmp_path: Path) -> None:
    refused = Served(tmp_path).call(*SERVE, "--open", "--host", "0.0.0.0", check=False)

    assert refused.returncode == 2
    assert "an open scheduler asks for no token; leave `open` out, or serve at 127.0.0.1" in refused.stderr


def test_others_are_served_by_their_tokens(tmp_path: Path) -> None:
    served = Served(tmp_path, "--host", "0.0.0.0")
    served.start()

    assert "4 of 4 slots free" in served.call("nodes").stdout
    assert "first" in served.call("token", "list").stdout
    bob = served.call("token", "create", "ci", "--owner", "bob", "--lifetime", "1d").stdout.strip()
    assert served.call("token", "revoke", "ci", "--owner", "bob").stdout == "revoked\n"
    served.environment["LONGSHORE_TOKEN"] = bob
    told = served.call("nodes", check=False)
    assert told.stderr.startswith(
        "longshore: the token 'ci' has expired or was revoked; set LONGSHORE_TOKEN to a valid"
    )
    served.environment["LONGSHORE_TOKEN"] = f"{bob[:-4]}none"
    told = served.call("nodes", check=False)
    assert told.stderr.startswith("longshore: the token is not known here; set LONGSHORE_TOKEN to a valid one")
    del served.environment["LONGSHORE_TOKEN"]
    (tmp_path / ".longshore" / "token").rename(tmp_path / "away")
    told = served.call("nodes", check=False)
    assert told.stderr.startswith("longshore: this scheduler asks for a token")
    assert "in the file `token` of its folder" in told.stderr
    served.end()


def test_a_configuration_file_is_served_and_options_go_before_it(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 1\nfolder: there\norder: fifo\npolicy: {fallback: pack}\n")
    served = Served(tmp_path, "--config", "c.yaml")
    served.start()

    job = served.submit("--", "true")
    served.ended(job)

    assert "chosen by pack" in served.call("explain", job).stdout
    assert (tmp_path / "there" / "longshore.db").exists()
    served.end()
