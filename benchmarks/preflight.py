"""Preflight: rounds on 8 nodes of this machine, faults that have to be named in time, and products that are judged.

Source: SPEC C2, C10; docs/preflight.md.
"""

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from longshore.cluster.model.placement import Share
from longshore.preflight.arithmetic import SIZE, ComputeStack, ReferencedProduct, furthest_beyond_limit, open_product
from longshore.preflight.check import CheckedJob, RoundReport, find_check
from longshore.preflight.context import NodeSetup
from longshore.preflight.rounds import run_round
from longshore.preflight.warm import LocalNode
from longshore.preflight.warm_worker import Target, serve_node

from . import faulty_nodes
from .harness import Row, main, progress, seconds

NODES, ROUNDS = 8, 10
LATE_S = 0.2  # beyond the limit of a check
FAULTS: Mapping[str, Target] = {
    "n1": faulty_nodes.hung, "n3": faulty_nodes.slow, "n4": faulty_nodes.wrong, "n6": faulty_nodes.dead,
}  # fmt: skip
RUNS, FLIPS, SMALL = 10_000, 1000, 128
FIRST_BIT = 10
QUICK = Path("/dev/shm")  # references are written durably, 20,000 times here


def nodes_of(folder: Path, faults: Mapping[str, Target]) -> dict[str, LocalNode]:
    """Return nodes of this machine that are warm, some of them with a fault."""
    names = [f"n{at}" for at in range(NODES)]
    found = {name: LocalNode(NodeSetup(name, folder, slots=True), faults.get(name, serve_node)) for name in names}
    for node in found.values():
        node.start()
    for node in found.values():
        node.wait_until_warm()
    return dict(found)


def round_on(nodes: Mapping[str, LocalNode]) -> RoundReport:
    """Run levels 0 and 1 on all nodes."""
    return run_round(tuple(Share(name, (0, 1)) for name in nodes), CheckedJob(), nodes)


def close(nodes: Mapping[str, LocalNode]) -> None:
    """End the processes."""
    for node in nodes.values():
        if isinstance(node, LocalNode):
            node.close()


def measure_rounds(folder: Path) -> Iterator[Row]:
    """Yield how long rounds take, on nodes that are well and on nodes that are not."""
    well: dict[str, LocalNode] = {}
    yield Row("8 nodes until they are warm", seconds(lambda: well.update(nodes_of(folder, {}))), "s")
    reports = [round_on(well) for _ in range(ROUNDS)]
    close(well)
    yield Row("rounds of levels 0 and 1 that find nothing", sum(it.passed for it in reports), "rounds", least=ROUNDS)
    yield Row("8 nodes, levels 0 and 1, median", statistics.median(it.seconds for it in reports), "s", most=1.0)
    yield Row("8 nodes, levels 0 and 1, longest", max(it.seconds for it in reports), "s", most=1.0)
    named, beyond, killed = [], [], []
    limit_s = find_check("gemm.ref").limit_s
    for at in range(ROUNDS):
        progress(f"faults: round {at + 1} of {ROUNDS}")
        nodes = nodes_of(folder, FAULTS)
        report = round_on(nodes)
        close(nodes)
        complete = [it for it in report.bad_results if it.got and it.wanted and it.action]
        named.append({it.node for it in complete} == set(FAULTS) == report.bad_nodes)
        beyond.append(report.seconds - limit_s)
        killed += [it.seconds - limit_s for it in report.bad_results if it.node == "n1"]
    yield Row("one hung, one slow, one wrong, one dead: all named", sum(named), "rounds", least=ROUNDS)
    yield Row("whole round beyond the limit, median", statistics.median(beyond), "s", most=LATE_S)
    yield Row("whole round beyond the limit, most", max(beyond), "s", most=LATE_S)
    yield Row("end of the one that hangs beyond its limit, most", max(killed), "s", most=LATE_S)


def measure_alarms(folder: Path) -> Iterator[Row]:
    """Yield how often clean products are called wrong, each of other matrices, first and second time."""
    stack, wrong = ComputeStack("here", "", ""), {"fp32": 0, "bf16": 0, "fp16": 0}
    for run in range(RUNS):
        dtype = tuple(wrong)[run % 3]
        with tempfile.TemporaryDirectory(dir=QUICK if QUICK.is_dir() else folder) as own:
            products = open_product(Path(own), dtype, "here", SMALL, seed=run)
            first, second = (products.judge(products.multiply("cpu"), stack) for _ in range(2))
        wrong[dtype] += not (first.is_clean and second.is_clean and second.is_golden)
        if run % 1000 == 999:
            progress(f"products: {run + 1} of {RUNS}")
    for dtype, count in wrong.items():
        yield Row(f"false alarms in {RUNS // 3} or more products, {dtype}", count, "alarms", most=0)
    products = open_product(folder, "fp32", "here")
    judged = [products.judge(products.multiply("cpu"), stack).is_clean for _ in range(RUNS)]
    yield Row(f"false alarms in {RUNS} runs of the check's own product", judged.count(False), "alarms", most=0)


def measure_flips(products: ReferencedProduct) -> Iterator[Row]:
    """Yield how many flipped bits are found in outputs of the check's own product in fp32."""
    import torch

    stack, rng = ComputeStack("here", "", ""), np.random.default_rng(1)
    clean = products.multiply("cpu")
    products.judge(clean, stack)
    by_bits, by_rule, from_bit = 0, 0, 0
    for _ in range(FLIPS):
        row, column, bit = (int(it) for it in rng.integers((SIZE, SIZE, 32)))
        flipped = clean.clone()
        flipped.view(torch.int32)[row, column] ^= -(1 << 31) if bit == 31 else 1 << bit
        verdict = products.judge(flipped, stack)
        by_bits += verdict.bit is not None and verdict.bit[:2] == (row, column)
        if bit >= FIRST_BIT:
            from_bit += 1
            wrong = furthest_beyond_limit(flipped.double().numpy(), products.exact, products.limit)
            by_rule += wrong is not None and (wrong.row, wrong.column) == (row, column)
    yield Row("flipped bits found against the same type's output", by_bits, f"of {FLIPS}", least=FLIPS)
    yield Row(f"flipped bits from {FIRST_BIT} up found by the tolerance", by_rule, f"of {from_bit}", least=from_bit)


def measure() -> Iterator[Row]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from measure_rounds(folder)
        yield from measure_alarms(folder)
        yield from measure_flips(open_product(folder, "fp32", "here"))


if __name__ == "__main__":
    main(measure)
