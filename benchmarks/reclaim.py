"""GPUs that rings give back while each process that takes part is killed (SIGKILL), at each step.

A ring gets a backup for a slow member, gives it back once the member is fast again, and ends. Two processes are killed:
the scheduler, the ring's supervisor, the process that starts its members, its coordinator, or a member. Nothing may be
held for ever then, and nothing may be free while a process of it lives. Source: SPEC P3, P5.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from longshore.cluster.files.processes import environment, living
from longshore.ring.folder import read_state
from longshore.ring.ring_client import request_ring_report
from longshore.scheduler.backends.local.ring_files import places_file
from longshore.scheduler.client import Client
from longshore.scheduler.model.states import FINAL
from longshore.scheduler.store.attempts import held_gpus
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.jobs import get_job

from .chaos import Served
from .harness import ROOT, Row, progress

RECLAIMS = 4 * int(os.environ.get("RUNS", "50"))
AT_ONCE = 20  # rings
NODES, PATIENCE_S = 32, 300.0
CLUSTER = f"""\
name: reclaim
node_types:
  slots: {{gpus: 2, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9}}
racks:
  - nodes:
      - {{type: slots, count: {NODES}}}
run_time: {{model: simple, node_penalty: 0.05}}
"""
VICTIMS = ("scheduler", "supervisor", "host", "coordinator", "backup", "slow")
SIGNS = ("reinstated", "unused", "left", "freed", "any time")
Gpu = tuple[str, int]


class World:
    """A scheduler that is killed and started again, and what is seen of it from outside.

    Args:
        home: Folder of everything.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in ("gpus", "shared"):
            (home / name).mkdir()
        (home / "cluster.yaml").write_text(CLUSTER)
        self.served = Served(home, None)
        self.served.line += ["--cluster", str(home / "cluster.yaml")]
        self.served.start()
        self.served.call(lambda client: client.nodes())
        self.store: Store = open_store(f"sqlite:///{home / 'state' / 'longshore.db'}")
        self.free_but_used: set[tuple[Gpu, int]] = set()
        self.rng = random.Random(1)
        self.kills: Counter[str] = Counter()  # that hit a process
        self.reviving = asyncio.Lock()

    def submit(self, number: int) -> str:
        """Submit a ring of two seats that may have a backup."""
        command = ["sh", "-c", f"exec {sys.executable} {ROOT / 'benchmarks' / 'reclaim_member.py'}"]
        path = f"{ROOT / 'src'}:{ROOT}"
        spec = {
            "name": f"ring-{number}", "gpus": 2, "failover": "switch", "backups": 1, "command": command, "grace_s": 1.0,
            "environment": {"RECLAIM": str(self.home), "PYTHONPATH": path, "PATH": os.environ["PATH"]},
            "retry": {"ambiguous": 1000, "infra": 1000, "no_progress": 1000, "user": 1000},
        }  # fmt: skip
        return str(self.served.call(lambda client: client.submit(spec, f"ring-{number}")["id"]))

    def held(self) -> dict[Gpu, str]:
        """Return the job that each GPU is reserved for, by the store."""
        with self.store.read() as tx:
            return {(it.node, it.gpu): it.job_id for it in held_gpus(tx)}

    def held_by(self, job: str) -> set[Gpu]:
        """Return the GPUs that are reserved for a job."""
        return {gpu for gpu, holder in self.held().items() if holder == job}

    def used(self) -> dict[Gpu, int]:
        """Return the pid of the process that lives on each GPU."""
        found: dict[Gpu, int] = {}
        for path in (self.home / "gpus").iterdir():
            node, _, gpu = path.name.rpartition("-")
            with suppress(OSError, ValueError):
                pid = int(path.read_text())
                if b"reclaim_member" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found[node, int(gpu)] = pid
        return found

    def used_by(self, job: str) -> set[Gpu]:
        """Return the GPUs on which a process of a job lives."""
        mark, found = f"LONGSHORE_JOB={job}".encode(), set()
        for gpu, pid in self.used().items():
            with suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.add(gpu)
        return found

    def ring(self, job: str) -> Path:
        """Return the folder of a job's ring, of its last attempt."""
        found = (self.home / "state" / "attempts").glob(f"ls-{job}-*/ring")
        return max(found, key=lambda it: int(it.parent.name.rpartition("-")[2]), default=self.home / "none")

    def read(self, job: str, name: str) -> Any:
        """Return what a file of a job's ring holds, None while it cannot be read."""
        with suppress(OSError, ValueError):
            return json.loads((self.ring(job) / name).read_bytes())
        return None

    def read_state(self, job: str) -> Any:
        """Return what the coordinator of a job's ring wrote last, None while that cannot be read."""
        with suppress(OSError, ValueError):
            return read_state(self.ring(job))[1] or None
        return None

    def is_over(self, job: str) -> bool:
        """Return whether a job has ended, by the store."""
        with self.store.read() as tx:
            row = get_job(tx, job)
        return row is not None and row.state in FINAL

    async def watch(self) -> None:
        """Check for GPUs that are free while a process lives there, until this is cancelled."""
        while True:
            before, held, after = self.used(), self.held(), self.used()
            free = {(gpu, pid) for gpu, pid in before.items() if after.get(gpu) == pid and gpu not in held}
            self.free_but_used |= free
            await asyncio.sleep(0.1)

    async def kill(self, victim: str, job: str) -> None:
        """Kill a process that has to do with a ring, if it lives."""
        if victim == "scheduler":
            async with self.reviving:  # or rings that live at the same time would never see one
                self.served.kill()
                self.served.start()
                self.kills[victim] += 1
                await asyncio.to_thread(self.served.call, Client.nodes)
            return
        members = self.read(job, "members.json") or []
        at = {"slow": 1, "backup": len(members) - 1}.get(victim)
        if at is not None and 0 <= at < len(members):
            pids = [self.used().get((members[at][0], members[at][1]))]
        else:
            pids = _processes(victim, self.ring(job).parent)
        for pid in pids:
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills[victim] += 1

    def end(self) -> int:
        """Stop it all; return how many processes of jobs are left."""
        left = [process.pid for process in living() if b"RECLAIM" in environment(process, b"RECLAIM")]
        self.served.kill()
        self.store.close()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)


def _processes(victim: str, attempt: Path) -> list[int | None]:
    """Return the pids of a coordinator, a host, or a supervisor of an attempt."""
    found: list[int | None] = []
    if not attempt.name.startswith("ls-"):  # it is gone, and so are they; any path has the folder of all
        return found
    name = {"coordinator": b"ring.coordinator_server", "host": b"ring_host", "supervisor": b"ring_host"}.get(
        victim, b"-"
    )
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (path / "cmdline").read_bytes()
            if name in line and str(attempt).encode() in line:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                is_theirs = str(attempt).encode() in Path(f"/proc/{parent}/cmdline").read_bytes()
                if victim != "supervisor" or is_theirs:  # else it has none any more
                    found.append(parent if victim == "supervisor" else int(path.name))
    return found


async def until(is_so: Callable[[], object], pause_s: float = 0.02) -> bool:
    """Wait until a condition holds, and return whether it does."""
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(pause_s)
    return True


async def relive(world: World, number: int, turn: int) -> tuple[bool, bool]:
    """Let a ring get a backup, give it back, and end; return whether both went well.

    Args:
        world: Everything.
        number: Of the ring.
        turn: Decides which process is killed, and when.
    """
    job = world.submit(number)
    slow = world.home / f"slow-{job}-1"
    if not await until(lambda: _is_at_rest(world, job), 0.2):
        return _show(world, job, "it never ran"), False
    slow.touch()
    has_backup = await until(lambda: _has_backup(world, job), 0.1)
    slow.unlink()
    if not has_backup:
        return _show(world, job, "it got no backup"), False
    victim, sign = VICTIMS[turn % len(VICTIMS)], SIGNS[turn // len(VICTIMS) % len(SIGNS)]
    if sign == "any time":
        await asyncio.sleep(world.rng.uniform(0.0, 14.0))
    else:
        await until(lambda: _has_reached(world, job, sign), 0.005)
    await world.kill(victim, job)
    gives_back = await until(lambda: _is_at_rest(world, job), 0.2) or _show(world, job, f"{victim} killed at {sign}")
    if turn % 2:
        world.served.call(lambda client: client.cancel(job))
    else:
        (world.home / f"end-{job}").touch()
    await asyncio.sleep(world.rng.uniform(0.0, 1.0))
    victim = VICTIMS[turn // 2 % len(VICTIMS)]
    await world.kill(victim, job)
    ends = await until(lambda: world.is_over(job) and not world.held_by(job) and not world.used_by(job), 0.2)
    return gives_back, ends or _show(world, job, f"{victim} killed at its end")


def _show(world: World, job: str, what: str) -> bool:
    progress(
        f"{job}: {what}; holds {world.held_by(job)}, uses {world.used_by(job)}, {request_ring_report(world.ring(job))}"
    )
    return False


def _has_backup(world: World, job: str) -> bool:
    report = request_ring_report(world.ring(job))
    return report is not None and report.relieved == [1]


def _has_reached(world: World, job: str, sign: str) -> bool:
    """Return whether the return of a backup has reached a step."""
    state, places = world.read_state(job), world.read(job, places_file(0))
    if state is None or places is None:
        return False
    if sign == "reinstated":
        return not state["relieved"]
    if sign == "freed":
        return len(world.held_by(job)) == 2
    return any(not used if sign == "unused" else left for _, _, used, left, *_ in places)


def _is_at_rest(world: World, job: str) -> bool:
    """Return whether a ring runs with all its members on just the GPUs that are reserved for it."""
    report = request_ring_report(world.ring(job))
    if report is None or report.phase != "running" or -1 in report.order or report.relieved or report.spares:
        return False
    held = world.held_by(job)
    return len(held) == 2 and held == world.used_by(job)


async def relive_all(world: World) -> list[tuple[bool, bool]]:
    """Let many rings live, some at once."""
    watching = asyncio.create_task(world.watch())
    slots, done, count = asyncio.Semaphore(AT_ONCE), list[tuple[bool, bool]](), RECLAIMS // 2

    async def one(number: int) -> None:
        async with slots:
            done.append(await relive(world, number, number))
        if len(done) % 5 == 0:
            well = sum(map(sum, done))
            progress(f"{well} well, {2 * len(done)} of {RECLAIMS}; {len(world.free_but_used)} free but used")

    await asyncio.gather(*map(one, range(count)))
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return done


def measure_reclaims() -> Iterator[Row]:
    """Kill processes while rings give GPUs back, and yield how often all was well."""
    with TemporaryDirectory(prefix="reclaim-", ignore_cleanup_errors=True) as folder:
        world = World(Path(folder))
        try:
            found = asyncio.run(relive_all(world))
        finally:
            left = world.end()
        shared = len(list((world.home / "shared").iterdir()))
        free = len(world.free_but_used)
    backups, rings = len(found), len(found)
    yield Row(
        "backups given back, a process killed meanwhile", sum(it for it, _ in found), f"of {backups}", least=backups
    )
    yield Row("rings that ended, a process killed meanwhile", sum(it for _, it in found), f"of {rings}", least=rings)
    yield Row("kills that hit a process", sum(world.kills.values()), "kills")
    for victim in VICTIMS:
        yield Row(f"of them {victim}", world.kills[victim], "kills")
    yield Row("GPUs that were free while a process lived there", free, "GPUs", most=0)
    yield Row("GPUs on which two processes met", shared, "GPUs", most=0)
    yield Row("processes left", left, "processes", most=0)
