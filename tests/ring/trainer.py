"""A training script for tests: a small network and Adam on made-up data that hang on step and shard alone.

Its log has a line for each step, and at the end the SHA-256 of parameters and Adam's state. FAULTS is
a list of {"member", "step", "at", "do"}, each of which happens once. To "wait" is to wait for a file "go".
"""

import fcntl
import hashlib
import json
import os
import random
import re
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import namespaces
from longshore.ring import Ring, state, wire
from longshore.ring.gradients import Gradients
from longshore.ring.groups import GlooGroup
from longshore.ring.member_client import MemberClient

MEMBER = int(os.environ[wire.MEMBER])
COPIED = 10  # pieces of the state that are under way or copied when something goes wrong: a third of all
FAULTS: list[dict[str, Any]] = [it for it in json.loads(os.environ.get("FAULTS", "[]")) if it["member"] == MEMBER]


def happen(at: str, step: int) -> None:
    """Cause the faults of this place."""
    for fault in list(FAULTS):
        if fault["at"] == at and fault["step"] == step:
            FAULTS.remove(fault)
            log("fault", fault)
            if fault["do"] in ("KILL", "STOP"):
                os.kill(os.getpid(), getattr(signal, f"SIG{fault['do']}"))
            elif fault["do"] == "raise":
                raise RuntimeError("made up")
            elif fault["do"] == "wait":
                while not Path("go").exists():
                    time.sleep(0.01)
            elif str(fault["do"]).startswith("break"):
                break_links(int(fault["do"].split()[1]))
            else:
                time.sleep(float(fault["do"]))


def log(kind: str, content: object) -> None:
    """Add a line to the log, in one piece."""
    os.write(1, (json.dumps({"kind": kind, "member": MEMBER, "at": time.time(), "content": content}) + "\n").encode())


def instrument(ring_step: list[int]) -> None:
    """Add the places at which faults may happen."""
    instrument_exchanges(ring_step)
    layout, first_step, ready, send = (
        MemberClient.wait_for_layout,
        MemberClient.report_first_step,
        MemberClient.report_ready,
        MemberClient._send,
    )

    def getting_ready(control: MemberClient, message: wire.MemberReady) -> None:
        Path(f"ends-{MEMBER}.json").write_text(json.dumps(message.endpoints))
        if any(it["at"] == "ready" and it["step"] == message.step for it in FAULTS):
            control._send(message)
        happen("ready", message.step)
        ready(control, message)

    def sending(control: MemberClient, message: wire.Message) -> None:
        happen(f"sending {type(message).__name__}", control.step)
        send(control, message)

    def forming(control: MemberClient) -> wire.RingLayout:
        if control.generation:
            happen("stopped", control.step)
        found = layout(control)
        log("layout", [found.generation, found.source, found.receivers])
        happen("formed" if found.generation > 1 else "", control.step)
        return found

    def running(control: MemberClient) -> None:
        happen("going" if control.generation > 1 else "", control.step - 1)
        first_step(control)
        happen("running" if control.generation > 1 else "", control.step - 1)

    MemberClient.wait_for_layout, MemberClient.report_first_step = forming, running  # type: ignore[method-assign, assignment]
    MemberClient.report_ready, MemberClient._send = getting_ready, sending  # type: ignore[method-assign, assignment]


def instrument_exchanges(ring_step: list[int]) -> None:
    """Add those in exchanges of gradients and in the copy of the state."""
    pieces = Counter[int]()  # by generation
    finish, average, broadcast = GlooGroup._wait_for_work, Gradients.average, GlooGroup.begin_broadcast

    def finishing(group: GlooGroup, work: Any) -> None:
        happen("reducing", ring_step[0])
        finish(group, work)

    def averaging(gradients: Gradients, group: Any, seats: int) -> None:
        average(gradients, group, seats)
        happen("reduced", ring_step[0])

    def broadcasting(group: GlooGroup, tensor: torch.Tensor, root: int) -> Callable[[], None]:
        finish = broadcast(group, tensor, root)
        pieces[group._client.generation] += tensor.numel() == state.COPY_PIECE_BYTES
        if pieces[group._client.generation] == COPIED:
            happen("copying", ring_step[0])
        return finish

    GlooGroup._wait_for_work, Gradients.average = finishing, averaging  # type: ignore[method-assign, assignment]
    GlooGroup.begin_broadcast = broadcasting  # type: ignore[method-assign, assignment]
    state.COPY_PIECE_BYTES = 1 << 10


def break_links(other: int) -> None:
    """Cut the sockets to another member, as a broken cable between two living machines does."""
    ends = json.loads(Path(f"ends-{other}.json").read_text())
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family == socket.AF_INET and "{}:{}".format(*end.getpeername()) in ends:
                    end.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


def polls_again() -> bool:
    """Return whether a thread polls data that has arrived, and would be woken again and again."""
    for name in os.listdir("/proc/self/fdinfo"):  # noqa: PTH208
        with suppress(OSError):
            description = Path(f"/proc/self/fdinfo/{name}").read_text()
            for number, events in re.findall(r"^tfd: *(\d+) events: *([0-9a-f]+)", description, re.MULTILINE):
                with suppress(OSError):  # one that listens has no bytes
                    unread = struct.unpack("i", fcntl.ioctl(int(number), termios.FIONREAD, b"\0" * 4))[0]
                    if unread and not int(events, 16) & select.EPOLLET:
                        return True
    return False


def keeps_polling() -> bool:
    """Return whether that stays so."""
    for _ in range(50):
        if not polls_again():
            return False
        time.sleep(0.02)
    return True


def batch(shard: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the data of a shard of a step."""
    generator = torch.Generator().manual_seed(step * 1000 + shard)
    x = torch.randn(16, 32, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return the SHA-256 of all that training has changed."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
            found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def main(until: int, pause_s: float, folder: Path | None) -> None:
    """Train."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    width = int(os.environ.get("WIDTH", "64"))
    model = torch.nn.Sequential(
        torch.nn.Linear(32, width),
        torch.nn.Dropout(float(os.environ.get("DROPOUT", "0.1"))),
        torch.nn.Tanh(),
        torch.nn.Linear(width, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    now = [0]
    instrument(now)
    with Ring(model, optimizer, checkpoints=folder) as ring:
        ring.keep("schedule", schedule)
        log("seated", [ring.seat, ring.generation])
        for step in ring.steps(until):
            now[0] = step
            loss = 0.0
            for shard in ring.shards:
                x, y = batch(shard, step)
                one = torch.nn.functional.mse_loss(model(x), y)
                one.backward()  # type: ignore[no-untyped-call]
                loss += one.item()
            happen("computing", step)
            while Path(f"hold-{MEMBER}").exists():
                Path(f"held-{MEMBER}").touch()
                time.sleep(0.01)
            time.sleep(pause_s * (8.0 if Path(f"slow-{MEMBER}").exists() else 1.0))
            if ring.step():
                schedule.step()
                log("step", [step, ring.generation, ring.seat, ring.shards, loss])
                if folder is not None and step % 10 == 9:
                    ring.save()
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002
    log("end", [digest(model, optimizer), ring.seat, ring.generation, drawn, schedule.state_dict()["last_epoch"]])
    log("polls", keeps_polling())
    log("descriptors", [len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))])


if __name__ == "__main__":
    namespaces.enter()
    Path(f"pid-{MEMBER}").write_text(str(os.getpid()))
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
