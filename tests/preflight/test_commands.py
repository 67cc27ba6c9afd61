"""`longshore preflight` by hand, and checks that travel with a job."""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from longshore.cluster.files.errors import InputError
from longshore.cluster.files.processes import free_port
from longshore.preflight import travelling as preflight_travelling
from longshore.preflight.check import CheckedJob, CheckOutcome, CheckStage, chosen_checks
from longshore.preflight.context import NodeSetup
from longshore.preflight.travelling import NOT_FIT, _make_scratch, rank_of_environment, wrap_command
from longshore.preflight.warm import LocalNode
from longshore.scheduler.rules.attempts import TEMPFAIL
from tests.command_line import Command
from tests.preflight.gpus import gpu
from tests.support import processes

CLUSTER = """
node_types: {slots: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9}}
racks: [{nodes: [{type: slots, name: a}, {type: slots, name: b}, {type: slots, name: c}]}]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(CLUSTER)
    return path


def test_nodes_that_are_fit_are_reported_with_status_0(longshore: Command, cluster: Path, tmp_path: Path) -> None:
    done = longshore("preflight", "--cluster", cluster, "--folder", tmp_path, "--nodes", "a, c", "--json")
    assert done.status == 0
    reported = json.loads(done.out)
    assert (reported["passed"], reported["nodes"], reported["bad_nodes"]) == (True, ["a", "c"], [])
    assert {"check", "node", "outcome", "got", "wanted", "action", "seconds"} <= set(reported["results"][0])


@pytest.mark.full
def test_a_node_that_is_not_fit_is_shown_in_a_table_with_status_1(
    longshore: Command, cluster: Path, tmp_path: Path
) -> None:
    wiring = tmp_path / "wiring.yaml"
    wiring.write_text("nodes: {b: {ports: {mlx5_0/1: {}}}}")
    done = longshore("preflight", "--cluster", cluster, "--folder", tmp_path, "--wiring", wiring, "--level", 0)
    assert done.status == 1
    (row,) = [line for line in done.out.splitlines() if line.startswith("b ")]
    assert "the port is not there" in row
    assert "reseat or replace the card" in row
    assert "2 of 3 nodes are fit" in done.out
    assert "b: wiring: fail" in done.err


def test_wiring_is_learned_into_a_file_that_can_be_checked_against(
    longshore: Command, cluster: Path, tmp_path: Path
) -> None:
    path = tmp_path / "learned.yaml"
    here = ("preflight", "--cluster", cluster, "--folder", tmp_path, "--nodes", "a")
    assert longshore(*here, "--learn-wiring", path).status == 0
    assert longshore(*here, "--wiring", path, "--level", 0).status == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--nodes", "unknown"), ("--nodes", ""), ("--nodes", "a,a"), ("--nodes", ",".join("a" * 200)),
        ("--nodes", "a\x1b[31m"), ("--level", "4"), ("--level", "-1"), ("--level", "x"), ("--dtype", "fp8"),
        ("--wiring", "/nowhere"), ("--wiring", "/"), ("--port-facts", "/nowhere"), ("--learn-wiring", "/nowhere/x"),
        ("--learn-wiring", "/"), ("--cluster", "/nowhere"), ("--folder", "/proc/nowhere"), ("--folder", "/dev/null"),
    ],
)  # fmt: skip
def test_an_option_that_is_invalid_is_reported_in_one_line(
    option: str, value: str, longshore: Command, cluster: Path, tmp_path: Path
) -> None:
    rest = {"--cluster": cluster, "--folder": tmp_path} | {option: Path(value) if value.startswith("/") else value}
    done = longshore("preflight", *(it for pair in rest.items() for it in pair))
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("longshore: ")
    assert done.err.count("\n") == 1


def travelling(*arguments: str, **environment: str) -> "processes.Process[str]":
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    line = [sys.executable, "-m", "longshore.preflight", *arguments]
    return processes.start(line, env=kept | environment, stdout=processes.PIPE, stderr=processes.PIPE, text=True)


# What a command inherits, beside its variables: signals that are ignored, and children.
INHERITED = 'grep SigIgn /proc/self/status; cat /proc/[0-9]*/status 2>/dev/null | grep -c "^PPid:.$$\\$"'


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.full)])
def test_ranks_check_themselves_and_each_other_and_become_the_command(address: str, tmp_path: Path) -> None:
    if address == "::1" and not has_address(address):
        pytest.skip("this machine has no IPv6")
    bare = processes.run(["sh", "-c", INHERITED], check=True, capture_output=True).stdout
    port, ranks = str(free_port()), 2
    running = [
        travelling(
            "--slots", "--", "sh", "-c", f"echo rank $RANK; {INHERITED}", RANK=str(rank), LOCAL_RANK=str(rank),
            MASTER_PORT=port, WORLD_SIZE=str(ranks), MASTER_ADDR=address, LONGSHORE_NODE="a", TMPDIR=str(tmp_path),
        )
        for rank in range(ranks)
    ]  # fmt: skip
    assert [process.communicate() for process in running] == [(f"rank {it}\n{bare}", "") for it in range(ranks)]
    assert [process.returncode for process in running] == [0, 0]
    assert list(tmp_path.iterdir()) == []


def has_address(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


@pytest.mark.full
def test_two_commands_have_scratch_folders_of_their_own_and_their_own_status(tmp_path: Path) -> None:
    (tmp_path / "job-0").mkdir(mode=0o777)
    code = f"""
import os, sys, time
own, folder = os.environ["LONGSHORE_SCRATCH"], {str(tmp_path)!r}
until_s = time.monotonic() + 60.0
while len(os.listdir(folder)) < 3 and time.monotonic() < until_s:
    time.sleep(0.01)
print(own, oct(os.stat(own).st_mode)[-3:])
for _ in range(1100):
    os.chdir(own)
    os.mkdir("down")
    own = "down"
sys.exit(7)
"""
    checks = ("--slots", "--level", "0", "--scratch", str(tmp_path), "--")
    running = [travelling(*checks, sys.executable, "-c", code) for _ in range(2)]
    printed = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [7, 7], printed
    folders = {out.split()[0] for out, _ in printed}
    assert {out.split()[1] for out, _ in printed} == {"700"}
    assert len(folders) == 2
    assert {Path(it).parent for it in folders} == {tmp_path}
    assert [it.name for it in tmp_path.iterdir()] == ["job-0"]


def test_a_scratch_folder_is_made_for_one_process(tmp_path: Path) -> None:
    rank = rank_of_environment({"LONGSHORE_ATTEMPT": "../ls-x-1"})
    made = [_make_scratch(tmp_path / "scratch", rank) for _ in range(2)]
    assert len(set(made)) == 2
    assert {it.parent for it in made} == {tmp_path / "scratch"}
    assert {it.stat().st_mode & 0o777 for it in made} == {0o700}


@pytest.mark.parametrize(("failures", "resolves"), [(0, True), (2, True), (10**9, False)])
def test_a_name_that_is_published_late_is_found_and_one_that_is_not_leaves_the_check_incomplete(
    *, failures: int, resolves: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left, resolve = iter(range(failures)), socket.getaddrinfo

    def look_up(host: str, port: int, **options: int) -> object:
        if next(left, None) is not None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        assert host == "first.of.job"
        return resolve("127.0.0.1", port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(preflight_travelling, "RESOLVE_POLL_S", 0.0)
    monkeypatch.setattr(preflight_travelling, "GROUP_LIMIT_S", 60.0 if resolves else 0.0)
    rank = rank_of_environment({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "first.of.job"})
    if resolves:
        assert preflight_travelling._own_address(rank) == "127.0.0.1"
        return
    node = LocalNode(NodeSetup("a", tmp_path, slots=True))  # is not started
    checks = chosen_checks(CheckStage.GROUP, 1, CheckedJob())
    (result,) = preflight_travelling._run_checks(checks, rank, CheckedJob(), 1, node)
    assert (result.check, result.outcome) == (checks[0].name, CheckOutcome.INCOMPLETE)
    assert "first.of.job" in result.reason


@pytest.mark.parametrize("name", ["", "a" * 70, "."])
def test_what_is_no_name_of_a_machine_is_no_traceback(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_travelling, "GROUP_LIMIT_S", 0.0)
    rank = rank_of_environment({"MASTER_ADDR": "127.0.0.1"})._replace(address=name)
    with suppress(OSError, ValueError):
        preflight_travelling._own_address(rank)


@pytest.mark.parametrize("sample", ["{", "3", '["\\udcff"]', "[3]", '["\udcff"]'])
def test_a_sample_that_cannot_be_sent_is_refused(sample: str) -> None:
    with pytest.raises(SystemExit) as ended:
        preflight_travelling.main(["--slots", "--sample", sample, "--", "true"])
    assert ended.value.code == 2


def test_a_rank_whose_process_cannot_be_started_has_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: LocalNode) -> None:
        raise EOFError

    monkeypatch.setattr(LocalNode, "start", fail)
    report = preflight_travelling.check_rank(rank_of_environment({}), CheckedJob(), 0, None, slots=True)
    assert [(it.check, it.outcome) for it in report.results] == [("response", CheckOutcome.INCOMPLETE)]


def test_a_link_to_the_folder_of_references_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = list[Path]()

    def fail(node: LocalNode) -> None:
        folders.append(node._setup.folder)
        raise EOFError

    monkeypatch.setattr(LocalNode, "start", fail)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    preflight_travelling.check_rank(rank_of_environment({}), CheckedJob(), 0, tmp_path / "link", slots=True)
    assert folders == [(tmp_path / "real").resolve()]


def test_a_process_with_many_descriptors_follows_its_signals(many_descriptors: None) -> None:
    with preflight_travelling.SignalWitness([signal.SIGUSR2]) as witness:
        assert witness._reads > 1024
        os.kill(witness._pid, signal.SIGUSR2)
        assert witness.has_received(signal.SIGUSR2)


@pytest.mark.full
def test_a_rank_without_the_gpu_that_it_needs_does_not_become_the_command() -> None:
    running = travelling("--", "echo", "never")
    out, err = running.communicate()
    assert (running.returncode, out) == (NOT_FIT, "")
    assert "count.type" in err


@pytest.mark.full
def test_a_rank_that_is_not_fit_asks_to_be_tried_again_where_the_scheduler_put_the_checks_before_it() -> None:
    line = wrap_command(("echo", "never"), CheckedJob(dtype="bf16", backend="nccl"), slots=False)
    assert line[:3] == ("python", "-m", "longshore.preflight")
    running = travelling(*line[3:])
    out, err = running.communicate()
    assert (running.returncode, out) == (TEMPFAIL, "")
    assert "count.type" in err
    workload = CheckedJob(dtype="bf16", backend="nccl", attachments=("host", "nic"))
    fit = travelling(*wrap_command(("echo", "--", "here"), workload, slots=True)[3:])
    assert fit.communicate() == ("-- here\n", "")


@pytest.mark.full
def test_a_command_that_is_not_there_is_reported() -> None:
    running = travelling("--slots", "--level", "0", "--", "/no/such/program")
    _, err = running.communicate()
    assert running.returncode == 127
    assert "cannot be run" in err


@pytest.mark.parametrize(
    "environment",
    [{"RANK": "x"}, {"RANK": "-1"}, {"RANK": "3"}, {"RANK": "9" * 30}, {"WORLD_SIZE": "0"}, {"MASTER_PORT": "1e3"},
     {"LOCAL_RANK": "2"}, {"RANK": "²"}],
)  # fmt: skip
def test_an_environment_that_is_invalid_is_reported(environment: Mapping[str, str]) -> None:
    with pytest.raises(InputError):
        rank_of_environment(environment)


def test_a_rank_is_on_the_gpu_that_the_scheduler_gave_it() -> None:
    reported = rank_of_environment(
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LONGSHORE_GPUS": "2,6", "LONGSHORE_NODE": "b"}
    )
    assert (reported.rank, reported.ranks, reported.gpu, reported.node) == (5, 8, 6, "b")


@pytest.mark.parametrize(
    ("visible", "local", "expected"),
    [
        (None, 1, 6),
        ("GPU-0", 1, 0),  # a container: the node's GPU 6 is its only one
        ("0", 1, 0),
        ("3", 0, 3),  # a shell that shows one GPU
        ("2,3", 1, 3),  # ranks that torchrun starts there
        ("GPU-3,GPU-2", 0, 3),
        ("MIG-1", 1, 6),
        ("", 1, 6),
    ],
)
def test_a_rank_checks_the_gpu_that_cuda_shows_it(visible: str | None, local: int, expected: int) -> None:
    gpus = [gpu(it).gpu for it in range(4)]
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": str(local), "LONGSHORE_GPUS": "2,6"}
    reported = environment if visible is None else environment | {"CUDA_VISIBLE_DEVICES": visible}
    assert rank_of_environment(reported, gpus).gpu == expected
