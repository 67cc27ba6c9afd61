"""Pictures of one cluster at a decision, as text and as an image: one line for each node, one mark for each GPU."""

import string
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..cluster.dispatch.turns import has_turns, line_up
from .batch import Batch

MARKS = string.ascii_lowercase + string.ascii_uppercase  # of jobs, by index, over and over
FREE, DOWN, PICKED = ".", "#", "+"
LISTED = 12  # jobs of the queue that are named
PIXELS, GAP = 12, 2  # side of a GPU's square, and what lies between two
BACKGROUND, FREE_COLOUR, DOWN_COLOUR, PICKED_COLOUR = (24, 24, 24), (70, 70, 70), (200, 30, 30), (255, 255, 255)
# Paul Tol's bright and muted schemes, which colour-blind readers can tell apart; red stands for GPUs out of service.
JOB_COLOURS = np.array(
    [
        (68, 119, 170), (34, 136, 51), (204, 187, 68), (102, 204, 238), (170, 51, 119), (51, 34, 136),
        (17, 119, 51), (68, 170, 153), (136, 204, 238), (221, 204, 119), (136, 34, 85), (170, 68, 153),
    ],
    dtype=np.uint8,
)  # fmt: skip


def text_picture(batch: Batch, row: int) -> str:
    """Return the state of a row as lines of text: time, nodes with their GPUs, and the queue.

    A letter is the job that holds the GPU, `.` a usable one, `#` one out of service, and `+` one that is picked for
    the job that is due. Nodes have their speed, and an exclamation mark if they are lemons.
    """
    sim, cluster = batch.sim, batch.sim.cluster
    state, scenario = sim.state, int(sim.state.scenario[row])
    speed, lemon = sim.scenarios.speed[scenario], sim.state.lemon[row]
    marks = "".join(_mark(batch, row, gpu) for gpu in range(cluster.gpu_node.size))
    lines = [
        f"{state.now_s[row] / 3600.0:.2f} h: {state.finished[row]} of {sim.scenarios.jobs[scenario]} jobs finished, "
        f"{state.running[row]} running, {state.queued[row]} waiting"
    ]
    for node in range(speed.size):
        gpus = marks[cluster.first_gpu[node] : cluster.first_gpu[node + 1]]
        lines.append(f"{node:4d} x{speed[node]:<5.3g}{'!' if lemon[node] else ' '} {gpus}")
    return "\n".join([*lines, _due(batch, row), f"queue (GPUs): {_queue(batch, row)}"]) + "\n"


def image(batch: Batch, row: int) -> NDArray[np.uint8]:
    """Return the state of a row as an image, shape (height, width, 3): a line of squares for each node.

    A colour is a job; usable GPUs are grey, picked ones white, and those out of service red.
    """
    cluster, state = batch.sim.cluster, batch.sim.state
    held, down = state.gpu_job[row], state.gpu_down[row] > 0
    colours = JOB_COLOURS[held % len(JOB_COLOURS)]
    colours[held < 0] = FREE_COLOUR
    colours[down] = DOWN_COLOUR
    colours[(held >= 0) & (held == state.current[row])] = PICKED_COLOUR
    sizes = np.diff(cluster.first_gpu)
    side = PIXELS + GAP
    picture = np.empty((GAP + sizes.size * side, GAP + int(sizes.max()) * side, 3), dtype=np.uint8)
    picture[:] = BACKGROUND
    for gpu, node in enumerate(cluster.gpu_node):
        top, left = GAP + node * side, GAP + (gpu - cluster.first_gpu[node]) * side
        picture[top : top + PIXELS, left : left + PIXELS] = colours[gpu]
    return picture


PICTURES: dict[str, Callable[[Batch, int], str | NDArray[np.uint8]]] = {"ansi": text_picture, "rgb_array": image}


def _mark(batch: Batch, row: int, gpu: int) -> str:
    state = batch.sim.state
    job = int(state.gpu_job[row, gpu])
    if job < 0:
        return DOWN if state.gpu_down[row, gpu] else FREE
    return PICKED if job == state.current[row] else MARKS[job % len(MARKS)]


def _due(batch: Batch, row: int) -> str:
    state = batch.sim.state
    job = int(state.current[row])
    if job < 0:
        return "due: none"
    gpus = int(batch.sim.scenarios.gpus[state.scenario[row], job])
    return f"due: job {job}, {gpus} GPUs, {gpus - state.need[row]} picked"


def _queue(batch: Batch, row: int) -> str:
    state = batch.sim.state
    gpus = batch.sim.scenarios.gpus[state.scenario[row]]
    jobs: list[int] = []
    if has_turns(batch.sim):
        jobs += batch.sim.scratch.lined_up[row, : line_up(batch.sim, row, LISTED)].tolist()
    else:
        job = int(state.head[row])
        while job >= 0 and len(jobs) < LISTED:
            jobs.append(job)
            job = int(state.next_job[row, job])
    return " ".join(f"{job} ({gpus[job]})" for job in jobs) + (" ..." if state.queued[row] > len(jobs) else "")
