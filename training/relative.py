"""Advantages of decisions in runs of one scenario, on the same faults, measured against each other.

A critic predicts from each decision what its run will come to. What that is above the group's mean at the same
progress, in jobs started, is how far the run has fallen behind so far; a decision's advantage is what later decisions
make good of it. With weight 1 on what lies ahead this is the run's lead over its group, less the lead that it had
already; smaller weights trust the critic more (as GAE does), and see less of the noise of later decisions.
"""

import numpy as np
from numpy.typing import NDArray

from ..cluster.compiled import kernel


@kernel
def write_advantages(
    row: NDArray[np.int32],
    starts: NDArray[np.int32],
    predicted: NDArray[np.float64],
    cost: NDArray[np.float64],
    lag: float,
    table: NDArray[np.float64],
    mean: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Write the advantage of every decision, positive if it is better than the group's.

    Args:
        row: Run of each decision, ascending, shape (decisions,).
        starts: Jobs started before it in its run, shape (decisions,).
        predicted: What its run is predicted to cost in the end, shape (decisions,).
        cost: What the runs cost, shape (groups, runs).
        lag: Weight of each further decision ahead, 0 to 1.
        table: Scratch, shape (groups x runs, most starts + 2).
        mean: Scratch, shape (groups, most starts + 2).
        out: Takes the advantages, shape (decisions,).
    """
    groups, runs = cost.shape
    flat = cost.reshape(groups * runs)
    width = table.shape[1]
    for run in range(flat.size):
        for place in range(width):
            table[run, place] = flat[run]
    for i in range(row.size - 1, -1, -1):  # the first decision at each progress stays
        table[row[i], starts[i]] = predicted[i]
    for group in range(groups):
        for place in range(width):
            total = 0.0
            for run in range(group * runs, (group + 1) * runs):
                total += table[run, place]
            mean[group, place] = total / runs
    ahead, behind_next = 0.0, 0.0
    for i in range(row.size - 1, -1, -1):
        group = row[i] // runs
        if i == row.size - 1 or row[i + 1] != row[i]:
            ahead, behind_next = 0.0, flat[row[i]] - mean[group, width - 1]
        behind = predicted[i] - mean[group, starts[i]]
        if i == 0 or row[i - 1] != row[i]:
            behind = 0.0  # all runs of a group begin alike
        ahead = behind - behind_next + lag * ahead
        out[i] = ahead
        behind_next = behind
