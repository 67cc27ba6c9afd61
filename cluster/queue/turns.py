"""Turns of users in the queue (docs/simulator.md, Turns): whose jobs are offered next.

Jobs of one user and one rank form a line. Lines with waiting jobs stand in two rotations: by one a user's job
leads, by the other a job passes it. A line goes to the end of a rotation after its turn, and when it enters.

Source: SPEC C9.
"""

from ..kernels.compiled import kernel
from ..model.problem import shortest_job_leads
from ..state.state import Simulation

LEADING, PASSING = range(2)  # the rotations


@kernel
def line_of(sim: Simulation, row: int, job: int) -> int:
    """Return the line that a job is of."""
    return int(sim.scenarios.line[sim.state.scenario[row], job])


@kernel
def _rotation_index(sim: Simulation, rotation: int, line: int) -> int:
    """Return the place of a line in the arrays that hold both rotations."""
    return int(rotation * sim.state.line_head.shape[1] + line)


@kernel
def _line_goes_before(sim: Simulation, row: int, rotation: int, line: int, other: int) -> bool:
    """Return whether a line has its turn before another: by rank, then by how long it waits for it."""
    state, rank = sim.state, sim.scenarios.rank[sim.state.scenario[row]]
    own, others = rank[state.line_head[row, line]], rank[state.line_head[row, other]]
    if own != others:
        return bool(own < others)
    a, b = _rotation_index(sim, rotation, line), _rotation_index(sim, rotation, other)
    if state.line_since_s[row, a] != state.line_since_s[row, b]:
        return bool(state.line_since_s[row, a] < state.line_since_s[row, b])
    if state.line_number[row, a] != state.line_number[row, b]:
        return bool(state.line_number[row, a] < state.line_number[row, b])
    return bool(state.line_oldest[row, line] < state.line_oldest[row, other])


@kernel
def _oldest_job_of_line(sim: Simulation, row: int, line: int) -> int:
    """Return the job of a line that came into the queue first, the lowest among equals.

    Jobs that came back count only where no others wait: they mostly start without a turn.
    """
    state = sim.state
    job = state.line_head[row, line]
    oldest = job
    while job >= 0:
        if state.came_back[row, job] == 0:
            return int(job)  # those behind it came later
        entered_s, least_s = state.entered_s[row, job], state.entered_s[row, oldest]
        if entered_s < least_s or (entered_s == least_s and job < oldest):
            oldest = job
        job = state.next_in_line[row, job]
    return int(oldest)


@kernel
def _link_line_between(sim: Simulation, row: int, rotation: int, before: int, line: int, after: int) -> None:
    """Let a line stand between two others of a rotation, -1 for its ends."""
    state = sim.state
    state.previous_line[row, _rotation_index(sim, rotation, line)] = before
    state.next_line[row, _rotation_index(sim, rotation, line)] = after
    if before < 0:
        state.first_line[row, rotation] = line
    else:
        state.next_line[row, _rotation_index(sim, rotation, before)] = line
    if after < 0:
        state.last_line[row, rotation] = line
    else:
        state.previous_line[row, _rotation_index(sim, rotation, after)] = line


@kernel
def _unlink_line(sim: Simulation, row: int, rotation: int, line: int) -> int:
    """Take a line out of a rotation; return the one that stood behind it."""
    state = sim.state
    before, after = (
        state.previous_line[row, _rotation_index(sim, rotation, line)],
        state.next_line[row, _rotation_index(sim, rotation, line)],
    )
    if before < 0:
        state.first_line[row, rotation] = after
    else:
        state.next_line[row, _rotation_index(sim, rotation, before)] = after
    if after < 0:
        state.last_line[row, rotation] = before
    else:
        state.previous_line[row, _rotation_index(sim, rotation, after)] = before
    return int(after)


@kernel
def _insert_line(sim: Simulation, row: int, rotation: int, line: int, after: int) -> None:
    """Put a line into a rotation: at the end if it belongs there, as it mostly does; else its place is searched.

    All lines before `after` must go before it. The search begins there, or at the end if that is -1.
    """
    state = sim.state
    last = state.last_line[row, rotation]
    if last < 0 or not _line_goes_before(sim, row, rotation, line, last):
        _link_line_between(sim, row, rotation, last, line, -1)
        return
    if after < 0:
        after = last
        before = state.previous_line[row, _rotation_index(sim, rotation, after)]
        while before >= 0 and _line_goes_before(sim, row, rotation, line, before):
            after, before = before, state.previous_line[row, _rotation_index(sim, rotation, before)]
    else:
        while not _line_goes_before(sim, row, rotation, line, after):
            after = state.next_line[row, _rotation_index(sim, rotation, after)]
    _link_line_between(sim, row, rotation, state.previous_line[row, _rotation_index(sim, rotation, after)], line, after)


@kernel
def reposition_line(sim: Simulation, row: int, line: int, was_in: int) -> None:
    """Bring a line with waiting jobs to its place in both rotations, after its jobs, their times or its turns changed.

    `was_in` is 1 if it stands in the rotations already.
    """
    state = sim.state
    oldest = _oldest_job_of_line(sim, row, line)
    state.line_oldest[row, line] = oldest
    entered_s = state.entered_s[row, oldest]
    for rotation in range(2):
        at = _rotation_index(sim, rotation, line)
        since_s, number = entered_s, 0
        if state.turn_number[row, at] > 0 and state.turn_s[row, at] >= entered_s:
            since_s, number = state.turn_s[row, at], state.turn_number[row, at]
        before, after = -1, -1
        if was_in:
            before = state.previous_line[row, at]
            after = _unlink_line(sim, row, rotation, line)
        state.line_since_s[row, at], state.line_number[row, at] = since_s, number
        if before >= 0 and _line_goes_before(sim, row, rotation, line, before):
            after = -1
        _insert_line(sim, row, rotation, line, after)


@kernel
def enter_line(sim: Simulation, row: int, job: int, before: int) -> None:
    """Put a waiting job into its line, before another job of it, -1 for its end."""
    state, line = sim.state, line_of(sim, row, job)
    was_in = 1 if state.line_head[row, line] >= 0 else 0
    previous = state.line_tail[row, line] if before < 0 else state.previous_in_line[row, before]
    state.previous_in_line[row, job], state.next_in_line[row, job] = previous, before
    if previous < 0:
        state.line_head[row, line] = job
    else:
        state.next_in_line[row, previous] = job
    if before < 0:
        state.line_tail[row, line] = job
    else:
        state.previous_in_line[row, before] = job
    reposition_line(sim, row, line, was_in)


@kernel
def leave_line(sim: Simulation, row: int, job: int) -> None:
    """Take a job out of its line."""
    state, line = sim.state, line_of(sim, row, job)
    previous, following = state.previous_in_line[row, job], state.next_in_line[row, job]
    if previous < 0 and following < 0:
        for rotation in range(2):
            _unlink_line(sim, row, rotation, line)
        state.line_head[row, line], state.line_tail[row, line] = -1, -1
        return
    if previous < 0:
        state.line_head[row, line] = following
    else:
        state.next_in_line[row, previous] = following
    if following < 0:
        state.line_tail[row, line] = previous
    else:
        state.previous_in_line[row, following] = previous
    reposition_line(sim, row, line, 1)


@kernel
def take_turn(sim: Simulation, row: int, job: int) -> None:
    """Note that a job, still in its line, starts with its user's turn; one that leads for it came back has had it."""
    state = sim.state
    if state.came_back[row, job] == 1 and state.leads[row] == 1 and not shortest_job_leads(sim.rules.order):
        return
    state.turns[row] += 1
    for rotation in range(2):
        if rotation == PASSING or state.leads[row] == 1:
            at = _rotation_index(sim, rotation, line_of(sim, row, job))
            state.turn_s[row, at], state.turn_number[row, at] = state.now_s[row], state.turns[row]


@kernel
def forget_turns(sim: Simulation, row: int) -> None:
    """Let no job wait in any line, and no line have had a turn."""
    state = sim.state
    _empty_lines(sim, row)
    for job in range(state.came_back.shape[1]):
        state.came_back[row, job] = 0
    for at in range(state.turn_s.shape[1]):
        state.turn_s[row, at], state.turn_number[row, at] = 0.0, 0


@kernel
def _empty_lines(sim: Simulation, row: int) -> None:
    state = sim.state
    for line in range(state.line_head.shape[1]):
        state.line_head[row, line], state.line_tail[row, line] = -1, -1
    for rotation in range(state.first_line.shape[1]):
        state.first_line[row, rotation], state.last_line[row, rotation] = -1, -1


@kernel
def rebuild_lines(sim: Simulation, row: int) -> None:
    """Build lines and rotations anew, by the queue, the jobs that came back, and the turns so far."""
    state = sim.state
    _empty_lines(sim, row)
    job = state.head[row]
    while job >= 0:
        enter_line(sim, row, job, -1)
        job = state.next_job[row, job]


@kernel
def next_line_of(sim: Simulation, row: int, rotation: int, line: int) -> int:
    """Return the line that has its turn after another one, -1 if there is none."""
    return int(sim.state.next_line[row, _rotation_index(sim, rotation, line)])


@kernel
def _line_up_returned_jobs(sim: Simulation, row: int, first: int, job: int, count: int, max_jobs: int) -> int:
    """Write the jobs that came back of a line and those of its rank, behind `count`; return how many stand there then.

    `first` is the first line of the rank, and none of the jobs stands before `job` in the queue.
    """
    state, scratch = sim.state, sim.scratch
    rank = sim.scenarios.rank[state.scenario[row]]
    own, line, left = rank[state.line_head[row, first]], first, 0
    while line >= 0 and left == 0 and rank[state.line_head[row, line]] == own:
        at = scratch.line_at[row, line]
        left += at >= 0 and state.came_back[row, at] == 1  # they stand before all others of their lines
        line = next_line_of(sim, row, LEADING, line)
    while left and job >= 0 and count < max_jobs:
        if state.came_back[row, job] == 1 and rank[job] == own:
            scratch.lined_up[row, count] = job
            scratch.line_at[row, line_of(sim, row, job)] = state.next_in_line[row, job]
            count += 1
        job = state.next_job[row, job]
    return count


@kernel
def line_up_jobs(sim: Simulation, row: int, max_jobs: int) -> int:
    """Write the first waiting jobs into `lined_up` as users take turns, one job of each in a round; return how many.

    Jobs that came back stand first at their rank, as the queue has them. It is how jobs would start if each led in its
    turn.
    """
    state, scratch = sim.state, sim.scratch
    rank = sim.scenarios.rank[state.scenario[row]]
    line = state.first_line[row, LEADING]
    while line >= 0:
        scratch.line_at[row, line] = state.line_head[row, line]
        line = next_line_of(sim, row, LEADING, line)
    count, rest = 0, state.head[row]
    while rest >= 0 and count < max_jobs and state.came_back[row, rest] == 1:
        scratch.lined_up[row, count] = rest
        scratch.line_at[row, line_of(sim, row, rest)] = state.next_in_line[row, rest]
        count, rest = count + 1, state.next_job[row, rest]
    first = state.first_line[row, LEADING]
    while first >= 0 and count < max_jobs:  # lines of one rank, then those of the next
        own = rank[state.line_head[row, first]]
        count = _line_up_returned_jobs(sim, row, first, rest, count, max_jobs)
        line, written = first, 0
        while line >= 0 and rank[state.line_head[row, line]] == own:
            job = scratch.line_at[row, line]
            if job >= 0 and count < max_jobs:
                scratch.lined_up[row, count] = job
                scratch.line_at[row, line] = state.next_in_line[row, job]
                count, written = count + 1, written + 1
            line = next_line_of(sim, row, LEADING, line)
        if written == 0:
            first = line
    return count
