"""A ring's launcher, when messages that it receives or processes that it starts are not as they should be."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from longshore.ring import warm as warm_process
from longshore.ring import wire
from longshore.ring.folder import make_ring_folder, read_settings, state_file
from longshore.ring.launcher import MemberStart, NextStart, RingLauncher
from longshore.ring.wire import make_welcome, new_challenge
from tests.support import processes

from .ring_command import VARIABLES, ring
from .tiny import tiny

BAD = [b"\n", b"nothing\n", b"[" * 9999 + b"\n", b'{"kind": "MemberGone", "member": "x"}\n', b"x" * (3 << 20) + b"\n"]


@pytest.mark.parametrize("bad", BAD, ids=["empty", "text", "deep", "types", "long"])
def test_a_launcher_receives_messages_after_a_line_that_is_no_message(tmp_path: Path, bad: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = new_challenge()
        writer.write(wire.encode(asked))
        hello = wire.decode(await reader.readline())
        assert isinstance(hello, wire.Hello)
        writer.write(wire.encode(make_welcome(read_settings(tmp_path).secret, asked, hello)))
        writer.write(bad + wire.encode(wire.MemberGone(5, "made up")) + wire.encode(wire.RingEnd("lost", "made up")))
        await reader.read()
        writer.close()

    async def run() -> None:
        make_ring_folder(tmp_path, 1)
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        (tmp_path / state_file(1)).write_text(
            json.dumps({"host": "127.0.0.1", "port": server.sockets[0].getsockname()[1]})
        )
        async with asyncio.timeout(60), RingLauncher(tmp_path) as launcher:
            await launcher.connect()
            assert (await launcher.wait_for_end()).reason == "made up"
            assert launcher.declared == {5: "made up"}
        server.close()
        await asyncio.sleep(0.1)  # until the server's side of the connection is closed too

    asyncio.run(run())


@pytest.mark.parametrize("moment", ["before it is started", "while it is started"])
def test_a_member_that_was_declared_gone_does_not_live(tmp_path: Path, moment: str) -> None:
    async def run() -> None:
        make_ring_folder(tmp_path, 1)
        (tmp_path / state_file(1)).write_text('{"host": "127.0.0.1", "port": 1}')
        async with asyncio.timeout(60), RingLauncher(tmp_path) as launcher:
            if moment == "before it is started":
                launcher.declared[0] = "made up"
            launcher.start(MemberStart(0, ("sleep", "1000"), os.environ, tmp_path))
            await asyncio.sleep(0)
            launcher.declared[0] = "made up"
            while 0 not in launcher.exits:
                await asyncio.sleep(0.02)
            assert not launcher.running_pids

    asyncio.run(run())


def test_a_user_of_a_launcher_that_fails_does_not_stop_it(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError("made up")

    async def run() -> None:
        make_ring_folder(tmp_path, 1)
        (tmp_path / state_file(1)).write_text('{"host": "127.0.0.1", "port": 1}')
        async with asyncio.timeout(60), RingLauncher(tmp_path, on_exit=fail) as launcher:
            launcher._end.set_result(wire.RingEnd("done", ""))
            launcher.start(MemberStart(0, ("true",), os.environ, tmp_path))
            await launcher.wait_for_end()
            assert launcher.exits == {0: 0}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "gone", "holders", "restarts"),
    [
        (77, {}, [-1], False),
        (77, {}, [4], True),
        (77, {"4": "its GPU is broken"}, [-1], False),
        (77, {"4": "its process has formed the most groups that it may"}, [-1], True),
        (-9, {"4": "its process has formed the most groups that it may"}, [-1], True),
        (1, {}, [4], False),
    ],
)
def test_the_coordinator_decides_whether_a_member_restarts(
    tmp_path: Path, status: int, gone: dict[str, str], holders: list[int], restarts: object
) -> None:
    async def run() -> bool:
        make_ring_folder(tmp_path, 1)
        (tmp_path / state_file(1)).write_text(
            json.dumps({"host": "127.0.0.1", "port": 1, "gone": gone, "holders": holders})
        )
        return RingLauncher(tmp_path).next_start(4, status) == NextStart(is_requested=True)

    assert asyncio.run(run()) is restarts


@pytest.mark.parametrize("keeps_declared", [False, True])
@pytest.mark.parametrize(
    ("status", "is_declared", "pause_s"),
    [(1, False, 0.0), (-9, True, 0.0), (wire.GONE_STATUS, False, 0.0), (wire.RESTART_STATUS, False, 1.0)],
)
def test_a_failed_process_is_replaced_and_that_of_a_declared_member_only_where_there_is_no_other_place(
    tmp_path: Path, status: int, pause_s: float, *, is_declared: bool, keeps_declared: bool
) -> None:
    async def run() -> list[NextStart | None]:
        make_ring_folder(tmp_path, 1)
        launcher = RingLauncher(tmp_path, restarts=1, keeps_declared=keeps_declared)
        launcher.declared.update({4: "it sent nothing for 10 s"} if is_declared else {})
        return [launcher.next_start(4, each) for each in (0, status, status)]

    is_replaced = keeps_declared or not (is_declared or status == wire.GONE_STATUS)
    following = NextStart(is_requested=False, pause_s=pause_s) if is_replaced else None
    assert asyncio.run(run()) == [None, following, None]  # none for one that ended well, nor once all are used up


def test_a_warm_process_that_cannot_fork_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    warm = warm_process.WarmProcess(path)

    def fail() -> int:
        raise BlockingIOError("made up")

    monkeypatch.setattr(os, "fork", fail)
    for outputs in ([1], []):  # the second one has no output
        with socket.socket(socket.AF_UNIX) as member:
            member.connect(str(path))
            socket.send_fds(member, [b"{}\n"], outputs)
            warm._accept_and_fork(listener)
            assert member.recv(10) == b""
    listener.close()
    warm._selector.close()


@pytest.mark.full
@pytest.mark.parametrize("name", ["logging", "json", "torch", "longshore"])
def test_folders_of_the_job_are_not_what_a_rings_programs_import(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('of the job')")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(tiny())
    command = [sys.executable, "-P", "-m", "longshore.ring", "--seats", "1", "--", "python", "scripts/train.py"]
    done = processes.run(command, cwd=tmp_path, env=VARIABLES, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("option", ["--no-warm", "--spares=0"])
def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path, option: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, pathlib, time\npathlib.Path(f'pid-{os.getpid()}').touch()\ntime.sleep(1000)\n")
    run = ring("--seats", 2, option, "--", "python", script, folder=tmp_path)
    until_s = time.monotonic() + 120
    while len(list(tmp_path.glob("pid-*"))) < 2:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    run.send_signal(signal.SIGKILL)
    run.wait()
    pids = {*children, *(path.name.removeprefix("pid-") for path in tmp_path.glob("pid-*"))}
    while any(Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in status_of(pid) for pid in pids):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    run.communicate()


def status_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"
