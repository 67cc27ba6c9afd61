"""Descriptors and threads of a ring's processes over many generations."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from longshore.ring import wire

from .trial import Trial, run_ring

GENERATIONS, STEPS = 25, 1000  # far more steps than that takes
# Descriptors and threads that gloo keeps of each group, with PyTorch 2.13. More is a leak, or a
# newer PyTorch.
OF_RING, OF_COPY, THREADS = 7, 9, 3
SPARE, SPARE_THREADS = 8, 3  # for what is under way; a leak of one a generation is more by the end of each member
# A pool of threads writes the coordinator's files: it starts them one by one, up to this number (`asyncio.to_thread`).
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
MEASUREMENTS, PAUSE_S = 100, 0.05


class Held(NamedTuple):
    """What a process holds, and the most that it may."""

    process: str
    generation: int
    descriptors: int
    threads: int
    most_descriptors: int
    most_threads: int

    @property
    def is_bounded(self) -> bool:
        return self.descriptors <= self.most_descriptors and self.threads <= self.most_threads


def count(pid: int) -> tuple[int, int]:
    """Return how many descriptors and threads a living process has."""
    descriptors, threads = (len(list(Path(f"/proc/{pid}/{it}").iterdir())) for it in ("fd", "task"))
    return descriptors, threads


def groups(trial: Trial, member: int) -> tuple[int, int]:
    """Return how many rings a member was in, and how many copies of the state between a few of them."""
    lines = (trial.folder / f"member-{member}.log").read_text().splitlines()
    forms = [json.loads(it)["content"] for it in lines if it.startswith('{"kind": "layout"')]
    copies = [it for it in forms if it[0] > 1 and member in (it[1], *it[2]) and it[2]]
    return len(forms), len(copies)


def measure(trial: Trial, report: wire.RingReport, first: dict[str, tuple[int, int]]) -> list[Held]:
    """Return what all living members and the coordinator hold."""
    found = []
    for member in (*report.order, *report.spares):
        if (pid := trial.launcher.running_pids.get(member)) is None:
            continue
        try:
            descriptors, threads = count(pid)
        except OSError:  # it has just ended
            continue
        rings, copies = groups(trial, member)
        base = first.setdefault("member", (descriptors, threads))  # of the first spare, which has no group yet
        most = base[0] + OF_RING * rings + OF_COPY * copies + SPARE
        most_threads = base[1] + THREADS * (rings + copies) + SPARE_THREADS
        found.append(Held(f"member {member}", report.generation, descriptors, threads, most, most_threads))
    pid = trial.launcher.coordinator_pid
    assert pid is not None
    descriptors, threads = count(pid)
    base = first.setdefault("coordinator", (descriptors, threads))
    most_threads = 1 + POOL_THREADS
    found.append(Held("coordinator", report.generation, descriptors, threads, base[0] + SPARE, most_threads))
    return found


@pytest.mark.full
def test_processes_restart_after_twenty_generations_and_hold_no_more_than_their_groups_until_then(
    warm: Path, tmp_path: Path
) -> None:
    """The youngest member is killed again and again, so that the others form one group after the other."""
    seen: list[Held] = []

    async def kill(trial: Trial) -> None:
        await trial.reached(2)
        await trial.spare_joined(4)
        first = {"member": count(trial.launcher.running_pids[4])}
        while (report := await trial.report()).generation < GENERATIONS:
            for _ in range(MEASUREMENTS):  # what is under way is soon over; what is leaked stays
                found = measure(trial, report, first)
                if all(it.is_bounded for it in found):
                    break
                await asyncio.sleep(PAUSE_S)
                report = await trial.report()
            seen.extend(found)
            if not all(it.is_bounded for it in found):
                return
            trial.send(max(it for it in report.order if it in trial.launcher.running_pids), signal.SIGKILL)
            before = report.generation
            # Not by the logs: to read them all takes so long on a busy machine that the ring is done before.
            while report.generation == before or report.phase != "running":
                await asyncio.sleep(0.02)
                report = await trial.report()

    found = run_ring(tmp_path, warm, spares=1, again=40, steps=STEPS, pause_s=0.05, during=kill)
    assert [it for it in seen if not it.is_bounded] == []
    assert found.end.outcome == "done"
    assert found.steps() == list(range(STEPS))
    assert found.generation() >= GENERATIONS
    assert len(found.digests()) == 1
    worn = [number for number, status in found.exits.items() if status == wire.RESTART_STATUS]
    assert set(worn) >= {0, 1, 2}
    assert len({it.generation for it in seen if it.process == "coordinator"}) >= 15
    assert len({it.generation for it in seen if it.process == "member 1"}) >= 10
