"""The queue as users take turns in it, from the arrays of a simulation and the definition in docs/simulator.md."""

from itertools import groupby, zip_longest

from longshore.cluster.state.state import Simulation

LEADING, PASSING = range(2)


def queue_of(sim: Simulation, row: int = 0) -> list[int]:
    """Return the waiting jobs as the queue stands."""
    jobs, job = list[int](), int(sim.state.head[row])
    while job >= 0:
        jobs.append(job)
        job = int(sim.state.next_job[row, job])
    return jobs


def in_turns(sim: Simulation, row: int, rotation: int) -> list[list[int]]:
    """Return the waiting jobs by line, the line first whose turn it is."""
    state, scenario = sim.state, sim.state.scenario[row]
    lines: dict[int, list[int]] = {}
    for job in queue_of(sim, row):
        lines.setdefault(int(sim.scenarios.line[scenario, job]), []).append(job)

    def turn(line: int) -> tuple[int, tuple[float, int], int]:
        came = [job for job in lines[line] if not state.came_back[row, job]] or lines[line]
        entered_s, oldest = min((float(state.entered_s[row, job]), job) for job in came)
        at = rotation * state.line_head.shape[1] + line
        had = float(state.turn_s[row, at]), int(state.turn_number[row, at])
        since = max((entered_s, 0), had) if had[1] else (entered_s, 0)
        return int(sim.scenarios.rank[scenario, oldest]), since, oldest

    return [lines[line] for line in sorted(lines, key=turn)]


def lined_up(sim: Simulation, row: int = 0) -> list[int]:
    """Return the waiting jobs as they would start if each led in its turn; as the queue stands without turns."""
    if not sim.rules.turns:
        return queue_of(sim, row)
    rank, back = sim.scenarios.rank[sim.state.scenario[row]], list[int]()
    for job in queue_of(sim, row):
        if not sim.state.came_back[row, job]:
            break
        back.append(job)
    for own, group in groupby(in_turns(sim, row, LEADING), lambda jobs: int(rank[jobs[0]])):
        lines = list(group)
        back += [
            job for job in queue_of(sim, row) if job not in back and sim.state.came_back[row, job] and rank[job] == own
        ]
        lines = [[job for job in jobs if job not in back] for jobs in lines]
        back += [job for jobs in zip_longest(*lines) for job in jobs if job is not None]
    return back
