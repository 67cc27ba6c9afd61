"""Whole runs with faults and switching, through the simulator and through the live scheduler: the same replacements.

The scheduler has its store, its loop and its desks; only the clock, the jobs and their rings are simulated.
"""

import math
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from longshore.agents.heuristics.heuristics import HEURISTICS
from longshore.agents.registry import find_policy
from longshore.cluster.model.problem import Problem
from longshore.cluster.model.scenarios import ORDERS, stopping
from longshore.cluster.presets.hetero64 import Site as Preset
from longshore.cluster.presets.hetero64 import hetero64
from longshore.cluster.simulator.event_log import START, SWITCH
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.state import Log, Simulation, allocate_log
from longshore.scheduler.backends.simulated import SimulatedBackend
from longshore.scheduler.mirror.standing import Site
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.service.twin import Twin
from longshore.scheduler.store.opening import open_store

JOBS, FAULTS = 60, 60.0

class Replacement(NamedTuple):
    time_s: float
    job: int
    seat: int
    left: int
    came: int


def replacements_in(log: Log) -> list[Replacement]:
    found, rings = [], {}
    for at in range(int(log.size[0])):
        kind, job = int(log.kind[at]), int(log.job[at])
        if kind not in (START, SWITCH):
            continue
        ring = log.gpus[log.first_gpu[at] : log.first_gpu[at + 1]].tolist()
        if kind == SWITCH:
            was = sorted(rings[job])
            left = [gpu for gpu in was if gpu not in ring]
            came = [gpu for gpu in reversed(ring) if gpu not in was]
            for gone, new in zip_longest(left, came, fillvalue=-1):
                seat = was.index(gone) if gone >= 0 else len(was)
                found.append(Replacement(float(log.time_s[at]), job, seat, gone, new))
        rings[job] = ring
    return found

def simulation(seed, formula=1, order="fifo", faults=FAULTS, jobs=JOBS, nodefaults=0.0, load=0.6):
    cluster, scenarios, process, rules = hetero64(1, seed, jobs=jobs, load=load, site=Preset(faults=faults))
    rules = rules._replace(switching=True, detection_s=12.0, switch_s=30.0, ring=True, replacement=formula,
        order=ORDERS[order], checkpoint_s=600.0, limit_s=math.inf)
    speed = scenarios.speed[0]
    cluster = cluster._replace(speed=speed, node_type=np.unique(speed, return_inverse=True)[1].astype(np.int32), peak_flops=speed*1e14)
    if nodefaults:
        rates = scenarios.source_rate_per_s.copy()
        gpus = cluster.gpu_node.size
        rates[:, gpus:gpus+speed.size] = nodefaults
        scenarios = scenarios._replace(source_rate_per_s=rates)
    return simulation_of(Problem(cluster, scenarios, process, rules), log=allocate_log(2000*jobs, 20000*jobs))

def scheduled(sim):
    cluster = sim.cluster
    site = Site(cluster, stopping(sim.rules), sim.process, sim.scenarios.hazard_per_s[0])
    layout = Layout([f"n{node}" for node in range(cluster.speed.size)], np.diff(cluster.first_gpu).tolist())
    with TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'longshore.db'}")
        twin = Twin(SimulatedBackend(sim, layout), site, store, Placer(HEURISTICS["pack"]))
        twin.run()
        from longshore.scheduler.store.rows.events import events_after
        with store.read() as tx:
            hours = [e for e in events_after(tx, 0, 1<<40) if e.kind == "seat" and "within an hour" in (e.cause or "")]
            nofaster = [e for e in events_after(tx, 0, 1<<40) if e.kind == "seat" and "faster with no" in (e.cause or "")]
        print("hour-limited:", len(hours), "not faster", len(nofaster))
        twin.scheduler.close()
        store.close()

def compare(**k):
    t=time.perf_counter()
    a = simulation(**k); find_policy("pack").run(a, np.zeros(1, dtype=np.int64))
    ta=time.perf_counter()-t
    b = simulation(**k); scheduled(b)
    A=sorted(replacements_in(a.log)); B=sorted(replacements_in(b.log))
    same=sum(x==y for x,y in zip(A,B))
    print(k, "sim", len(A), "filled", sum(x.came>=0 for x in A), "grown", sum(x.left<0 for x in A), "live", len(B), "same", same, f"{ta:.1f} {time.perf_counter()-t:.1f} s")
    for i,(x,y) in enumerate(zip_longest(A,B)):
        if x!=y:
            print("first difference", i); print(A[i-2:i+3]); print(B[i-2:i+3]); break
    return a,b,A,B
if __name__ == "__main__":
    import logging
    logging.getLogger("longshore").setLevel(logging.CRITICAL)
    for formula in (1,0):
        for seed in (1,2):
            for nf in (0.0, 1e-5):
                compare(seed=seed, formula=formula, nodefaults=nf)
