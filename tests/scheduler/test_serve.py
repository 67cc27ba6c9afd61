"""The command line as a user calls it, against a real scheduler on a port of the loopback interface."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import processes

from .conftest import Here
from .served import LONGSHORE, PATIENCE_S, SERVE, Served, until

ONE_FAILS = """
echo hello
[ $RANK = 1 ] || { touch said-$LONGSHORE_JOB-$LONGSHORE_ATTEMPT; exec sleep 1000; }
until [ -e said-$LONGSHORE_JOB-$LONGSHORE_ATTEMPT ]; do sleep 0.02; done
echo "no such layer"
exit 4
"""


def test_a_command_runs_once_on_each_gpu_that_it_was_given(served: Served) -> None:
    job = served.submit("--gpus", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE sees $CUDA_VISIBLE_DEVICES")

    assert served.ended(job) == "succeeded"
    status, explained = served.call("status", job).stdout, served.call("explain", job).stdout

    assert "succeeded" in status
    assert "rack0-node0:0,1" in status
    assert "rack0-node0:0,1, 1.00 x its estimate" in explained
    assert "chosen by patient in" in explained
    assert served.call("logs", job).stdout == "rank 0 of 2 sees 0,1\n"
    assert served.call("logs", job, "--rank", "1").stdout == "rank 1 of 2 sees 0,1\n"


def test_a_job_that_fails_says_why_and_a_program_that_is_not_there_is_named(served: Served) -> None:
    fails, refused = served.add("sh", "-c", "exit 3"), served.add("no-such-program")
    assert (served.ended(fails), served.ended(refused)) == ("failed", "failed")

    assert "state      failed\ncause      rank 0 ended with exit code 3\n" in served.call("status", fails).stdout
    assert "no-such-program" in served.ask(f"/v1/jobs/{refused}")["cause"]


@pytest.mark.full
def test_a_policy_that_cannot_be_loaded_is_one_line_and_nothing_is_served(tmp_path: Path) -> None:
    (tmp_path / "torn.zip").write_bytes(b"PK")

    line = [*LONGSHORE, *SERVE, "--policy", "torn.zip"]
    done = processes.run(line, cwd=tmp_path, capture_output=True, check=False)

    assert done.returncode == 2
    *loading, error = (line for line in done.stderr.splitlines() if not line.startswith("compiling"))
    assert loading
    assert all(line.startswith("loading torn.zip ...") for line in loading)
    assert error.startswith("longshore: policy 'torn.zip' cannot be loaded: torn.zip")


@pytest.mark.full
def test_what_cannot_be_asked_for_is_one_line(served: Served) -> None:
    too_large = served.call("submit", "--gpus", "17", "--", "true", check=False)
    unknown = served.call("status", "nobody", check=False)

    assert (too_large.returncode, too_large.stderr.strip()) == (
        2, "longshore: the job asks for 17 GPUs, the cluster has 16",
    )  # fmt: skip
    assert (unknown.returncode, unknown.stderr.strip()) == (2, "longshore: there is no job 'nobody'")


def test_a_job_is_held_released_and_cancelled_and_then_its_gpus_are_free_again(served: Served) -> None:
    job = served.add("sleep", "1000", gpus=16)
    until(lambda: served.state(job) == "running")

    served.call("job", "hold", job)
    until(lambda: served.state(job) == "held")
    assert "it is held until its owner releases it" in served.call("status", job).stdout
    served.call("job", "release", job)
    until(lambda: served.state(job) == "running")
    assert len(served.ask(f"/v1/jobs/{job}")["attempts"]) == 2

    served.call("cancel", job)
    assert served.ended(job) == "cancelled"
    assert served.call("node", "list").stdout.count("4 of 4 slots free") == 4


def test_a_dry_run_submits_nothing(served: Served) -> None:
    answer = served.call("submit", "--dry-run", "--gpus", "2", "--", "true").stdout

    assert re.findall(r"(\d+) (?:jobs|GPUs)", answer) == ["0", "16"]
    assert served.call("queue").stdout == "no jobs are running or waiting\n"


def test_options_go_before_what_a_job_file_says(served: Served, here: Here) -> None:
    (served.folder / "train.yaml").write_text(
        "name: first\ngpus: 2\ncommand: [python, train.py]\nlimit_s: 60\nenvironment: {A: x, B: y}\n"
    )

    plain = json.loads(here(served, "submit", "train.yaml", "--dry-run", "--json").out)["spec"]
    line = "--gpus 8 --name second --priority 5 --limit 2h --estimate 90m --folder there --env B=z --env C=w"
    changed = served.told("submit", "train.yaml", *line.split(), "--dry-run")["spec"]
    command = ("--", "python", "eval.py", "--json")
    other = json.loads(here(served, "submit", "train.yaml", "--dry-run", "--json", *command).out)["spec"]

    assert (plain["name"], plain["gpus"], plain["limit_s"], plain["folder"]) == ("first", 2, 60.0, str(served.folder))
    named = ("name", "gpus", "priority", "limit_s", "estimate_s", "folder", "command")
    assert tuple(changed[name] for name in named) == (
        "second", 8, 5, 7200.0, 5400.0, str(served.folder / "there"), ["python", "train.py"],
    )  # fmt: skip
    assert changed["environment"] == ["A", "B", "C", "PATH"]
    assert (other["command"], other["name"]) == (["python", "eval.py", "--json"], "first")


@pytest.mark.full
def test_variables_of_options_reach_the_job(served: Served) -> None:
    served.environment["FROM_HERE"] = "there"
    job = served.submit("--env", "A=1 2", "--env", "FROM_HERE", "--", "sh", "-c", 'echo "$A $FROM_HERE"')

    assert served.ended(job) == "succeeded"
    assert served.call("logs", job).stdout == "1 2 there\n"


@pytest.mark.full
def test_the_lists_say_where_jobs_run_and_why_they_wait(served: Served, here: Here) -> None:
    runs = served.add("sleep", "1000", name="whole", gpus=16)
    until(lambda: served.state(runs) == "running")
    # The same estimate for both: else the jobs of earlier tests decide which of them is the shorter one.
    waits = [served.add("true", name=f"part-{gpus}", gpus=gpus, estimate_s=60) for gpus in (4, 1)]
    first = served.submit("--name", "urgent", "--priority", "7", "--", "true")

    lines = served.call("queue").stdout.splitlines()

    assert lines[0].split() == [
        "PLACE", "JOB", "NAME", "USER", "STATE", "GPUS", "SUBMITTED", "STARTED", "RAN", "NODES", "OR", "REASON",
    ]  # fmt: skip
    assert [line.split()[:2] for line in lines[1:]] == [["-", runs], ["1", first], ["2", waits[0]], ["3", waits[1]]]
    assert lines[1].endswith("rack0-node0 rack0-node1 rack0-node2 rack0-node3")
    assert lines[3].endswith("it asks for 4 GPUs, and 0 are free")
    named = here(served, "queue", "--name", "part-*", "--json").out
    assert [job["name"] for job in json.loads(named)] == ["part-4", "part-1"]
    assert [job["id"] for job in served.told("job", "list", "--state", "running")] == [runs]
    assert json.loads(here(served, "queue", "--user", "nobody", "--json").out) == []
    newest = here(served, "job", "list", "--limit", "2").out.splitlines()
    assert [line.split()[0] for line in newest] == ["JOB", first, waits[1]]
    shown = here(served, "status", waits[1]).out
    assert "waiting    it asks for 1 GPU, and 0 are free\nplace      3 in the queue\n" in shown


def test_several_jobs_are_cancelled_and_one_that_is_not_there_stops_nothing(served: Served) -> None:
    jobs = [served.add("sleep", "1000", gpus=16) for _ in range(2)]

    done = served.call("cancel", jobs[0], "nobody", jobs[1], check=False)

    assert (done.returncode, done.stderr) == (2, "longshore: there is no job 'nobody'\n")
    assert [line.split()[0] for line in done.stdout.splitlines()] == jobs
    until(lambda: {served.state(job) for job in jobs} == {"cancelled"})


@pytest.mark.full
def test_waiting_ends_with_how_the_jobs_did(served: Served, here: Here) -> None:
    good, bad = served.add("true"), served.add("false")
    endless = served.add("sleep", "1000")

    one = here(served, "wait", good)
    both = served.call("wait", good, bad, "--json", check=False)
    late = served.call("wait", endless, "--timeout", "0s", check=False)

    assert one == (0, f"{good}  succeeded  all ranks ended with exit code 0\n", "")
    assert both.returncode == 1
    assert {it["id"]: it["state"] for it in json.loads(both.stdout)} == {good: "succeeded", bad: "failed"}
    assert (late.returncode, endless in late.stderr) == (124, True)
    assert here(served, "wait", "nobody").status == 2


@pytest.mark.full
def test_the_token_stays_secret_and_no_other_user_is_served(served: Served, tmp_path: Path) -> None:
    assert httpx.get(f"{served.url}/v1/jobs", timeout=PATIENCE_S, trust_env=False, verify=False).status_code == 401
    assert (served.folder / ".longshore" / "token").stat().st_mode & 0o777 == 0o600

    elsewhere = Served(tmp_path)  # the same user in another folder
    elsewhere.port, elsewhere.environment = served.port, served.environment
    job = elsewhere.submit("--", "true")

    assert served.ended(job) == "succeeded"
    assert served.ask("/v1/jobs?limit=1")["jobs"][0]["id"] == job
    assert served.ask(f"/v1/jobs/{job}")["owner"] == "local"


def test_a_log_gets_no_link_and_a_command_prints_one(served: Served) -> None:
    assert "code=" not in (served.folder / "serve.log").read_text()

    link = served.call("dashboard").stdout.strip()

    assert httpx.get(link, timeout=PATIENCE_S, trust_env=False, verify=False).headers["Location"] == "/"
    assert httpx.get(link, timeout=PATIENCE_S, trust_env=False, verify=False).status_code == 401


def failing(served: Served) -> str:
    """Return a job of two ranks, of which the second has failed."""
    job = served.add("sh", "-c", ONE_FAILS, gpus=2)
    assert served.ended(job) == "failed"
    return job


@pytest.fixture(scope="module")
def failed(running: Served) -> str:
    """Such a job, for tests that only look at it."""
    return failing(running)


def test_a_failed_job_names_the_rank_to_look_at(served: Served, failed: str, here: Here) -> None:
    line = f"failed first (exit code 4): longshore logs {failed} --attempt 1 --rank 1"

    status, second = here(served, "status", failed), here(served, "logs", failed, "--rank", "1")
    first = served.call("logs", failed)

    assert line in status.out
    assert (first.stdout, line in first.stderr) == ("hello\n", True)
    assert (second.out, second.err) == ("hello\nno such layer\n", "")


def test_all_ranks_and_the_last_lines_are_shown(served: Served, failed: str, here: Here) -> None:
    every = here(served, "logs", failed, "--rank", "all", "--attempt", "1")
    last = here(served, "logs", failed, "--rank", "all", "--tail", "1")
    followed = served.call("logs", failed, "--rank", "all", "-f")

    assert every.out == "[0] hello\n[1] hello\n[1] no such layer\n"
    assert last.out == "[0] hello\n[1] no such layer\n"
    assert followed.stdout == every.out


@pytest.mark.parametrize("options", [("--rank", "first"), ("--rank", "-1"), ("--attempt", "0"), ("--attempt", "9")])
def test_what_is_no_rank_or_attempt_is_one_line_of_error(
    served: Served, failed: str, options: tuple[str, str], here: Here
) -> None:
    answer = here(served, "logs", failed, *options)
    assert (answer.status, answer.out) == (2, "")
    assert "Traceback" not in answer.err


@pytest.mark.full
def test_a_failed_job_is_tried_again(served: Served) -> None:
    again = failing(served)
    assert re.fullmatch(rf"{again}  (queued|starting|running), to be run\n", served.call("job", "retry", again).stdout)
    assert served.ended(again) == "failed"
    assert served.call("logs", again, "--attempt", "2").stdout == "hello\n"


def test_no_scheduler_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    done, waited = (Served(tmp_path).call(*command, check=False) for command in (("queue",), ("wait", "x")))

    assert waited.returncode == 2
    assert done.returncode == 2
    assert done.stderr.startswith("longshore: no scheduler answers at http://127.0.0.1:")
    assert done.stderr.endswith("; start one with `longshore serve`\n")


@pytest.mark.full
def test_a_taken_port_is_one_line(served: Served) -> None:
    done = served.call(*SERVE, "--port", str(served.port), "--folder", "other", check=False)

    assert (done.returncode, done.stderr.strip()) == (
        2,
        f"longshore: 127.0.0.1:{served.port} cannot be served at: Address already in use; "
        "is a scheduler running? else choose --port",
    )
    assert not (served.folder / "other").exists()


@pytest.mark.full
def test_an_open_scheduler_does_not_serve_others(tmp_path: Path) -> None:
    refused = Served(tmp_path).call(*SERVE, "--open", "--host", "0.0.0.0", check=False)

    assert refused.returncode == 2
    assert "an open scheduler asks for no token; leave `open` out, or serve at 127.0.0.1" in refused.stderr


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A scheduler of a configuration file, with options before which that says another port, at every address."""
    folder = tmp_path_factory.mktemp("configured")
    (folder / "c.yaml").write_text("port: 1\nfolder: there\norder: fifo\npolicy: {fallback: pack}\n")
    it = Served(folder, "--config", "c.yaml", "--host", "0.0.0.0")
    it.start()
    yield it
    it.end()


@pytest.mark.full
def test_a_configuration_file_is_served_and_options_go_before_it(configured: Served) -> None:
    job = configured.add("true")
    configured.ended(job)

    assert "chosen by pack" in configured.call("explain", job).stdout
    assert (configured.folder / "there" / "longshore.db").exists()


@pytest.mark.full
def test_others_are_served_by_their_tokens(configured: Served, here: Here) -> None:
    assert "4 of 4 slots free" in here(configured, "node", "list").out
    assert "first" in configured.call("token", "list").stdout
    bob = configured.call("token", "create", "ci", "--owner", "bob", "--lifetime", "1d").stdout.strip()
    assert configured.call("token", "revoke", "ci", "--owner", "bob").stdout == "revoked\n"
    configured.environment["LONGSHORE_TOKEN"] = bob
    refused = configured.call("node", "list", check=False)
    assert refused.stderr.startswith(
        "longshore: the token 'ci' has expired or was revoked; set LONGSHORE_TOKEN to a valid"
    )
    configured.environment["LONGSHORE_TOKEN"] = f"{bob[:-4]}none"
    listed = here(configured, "node", "list")
    assert listed.err.startswith("longshore: the token is unknown; set LONGSHORE_TOKEN to a valid one")
    del configured.environment["LONGSHORE_TOKEN"]
    away = (configured.folder / "there" / "token").rename(configured.folder / "away")
    listed = here(configured, "node", "list")
    away.rename(configured.folder / "there" / "token")  # the scheduler is another test's, too
    assert listed.err.startswith("longshore: this scheduler needs a token")
    assert "in the file `token` of its folder" in listed.err
