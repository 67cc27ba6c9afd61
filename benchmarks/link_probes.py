"""Probes of links whose rates are known: how far off they are, and how long those of three candidates take.

Agents are on nodes in network namespaces of their own (`namespaces.py`); what leaves a node is shaped by `tc tbf`.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from longshore.scheduler.control.seat_choice import MAX_MEASURED_CANDIDATES, neighbour_links
from longshore.scheduler.health.link_probes import ROUND_S, LinkState, LinkTable, ProbePlace, Prober, probe_link
from tests.support import processes

from .harness import ROOT, Row, progress
from .namespaces import NAMESPACES, VARIABLE, Network, enter, why_not

RATES = {200: 25e6, 800: 100e6}  # bytes/s of a link, headers among them, by Mb/s
PAYLOAD = 1448 / 1514  # of a packet with its headers: what is left for the bytes that are sent
RUNS = 20
MOST_OFF = 0.05


def measure_probes() -> Iterator[Row]:
    """Probe, and yield how far off the figures are, and how long it took."""
    if why := why_not():
        progress(f"probes of links of a known rate are skipped: {why}")
        return
    found = probed(RUNS)
    for rate in RATES:
        off = [abs(it - 1.0) for it in found[f"{rate} Mb/s"]]
        yield Row(f"probe of a link of {rate} Mb/s: off by, median", statistics.median(off), "", most=MOST_OFF)
        yield Row(f"probe of a link of {rate} Mb/s: off by, most of {len(off)}", max(off), "")
    took_s = found["seconds"]
    yield Row(f"links of {MAX_MEASURED_CANDIDATES} candidates: seconds, median", statistics.median(took_s), "s")
    yield Row(
        f"links of {MAX_MEASURED_CANDIDATES} candidates: seconds, most of {len(took_s)}", max(took_s), "s", most=ROUND_S
    )
    yield Row(
        f"links of {MAX_MEASURED_CANDIDATES} candidates: measured by then",
        statistics.fmean(found["share"]),
        "",
        least=0.9,
        timed=True,
    )


def probed(runs: int) -> dict[str, list[float]]:
    """Return figures over truths by rate, and how long all links of three candidates took."""
    command = [*NAMESPACES, sys.executable, "-m", "benchmarks.link_probes", str(runs)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = processes.run(command, cwd=ROOT, env=environment, stdout=processes.PIPE, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def agent_on(network: Network, node: int) -> Iterator[ProbePlace]:
    """Run what an agent does of probes on a node, and return where it listens."""
    command = [sys.executable, "-m", "benchmarks.link_probes", "--agent", network.address(node)]
    environment = {**os.environ, VARIABLE: network.name(node)}
    process = processes.start(command, cwd=ROOT, env=environment, stdin=processes.PIPE, stdout=processes.PIPE)
    assert process.stdout
    try:
        yield ProbePlace.model_validate_json(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def be_agent(address: str) -> None:
    """Listen on the node that the environment names, until this process is killed."""
    enter()
    print(Prober(address).place.model_dump_json(), flush=True)
    sys.stdin.read()


def candidates(places: Sequence[ProbePlace]) -> tuple[float, float]:
    """Return how long all links of candidates take that matter to a ring, and the share that was measured.

    The neighbours of the seat are the first two nodes.
    """
    names = [str(it) for it in range(len(places))]
    table = LinkTable(lambda: dict(zip(names, places, strict=True)))
    wanted = neighbour_links(names, (0, 1), range(2, len(places)))
    began_s = time.monotonic()
    while table.request_probes(wanted, began_s + ROUND_S, lambda: None):
        time.sleep(0.001)
    took_s = time.monotonic() - began_s
    measured = {pair for pair, it in table.fresh_outcomes().items() if it.state is LinkState.MEASURED}
    return took_s, len(measured) / len(wanted)


def main(runs: int) -> None:
    """Measure, in namespaces of this process's own."""
    network, rates = Network(2 + MAX_MEASURED_CANDIDATES), list(RATES.values())
    for node in range(2 + MAX_MEASURED_CANDIDATES):
        network.shape(node, rates[min(node, 1)])
    with ExitStack() as stack:
        places = [stack.enter_context(agent_on(network, node)) for node in range(2 + MAX_MEASURED_CANDIDATES)]
        found = {
            f"{rate} Mb/s": [
                probe_link(places[node], places[1 - node]).bytes_per_s / (bytes_per_s * PAYLOAD) for _ in range(runs)
            ]
            for node, (rate, bytes_per_s) in enumerate(RATES.items())
        }
        rounds = [candidates(places) for _ in range(runs)]
    found |= {"seconds": [took_s for took_s, _ in rounds], "share": [share for _, share in rounds]}
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "--agent":
        be_agent(sys.argv[2])
    else:
        main(int(sys.argv[1]))
