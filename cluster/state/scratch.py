"""What kernels write down within one call and nobody reads afterwards: no part of what a cluster is like.

Copies, imaginations and kept runs leave it out.
"""

from typing import Annotated, NamedTuple

from .shapes import Floats, Ints, Longs


class Scratch(NamedTuple):
    """Notes of the kernels on each row; their axes are those of the state (shapes.py)."""

    trial_free: Annotated[Ints, "rows", "nodes"]  # usable GPUs at a moment that is imagined
    free_nodes: Annotated[Longs, "rows", "sizes x words"]  # the same: a bit for each node with so many
    free_count: Annotated[Ints, "rows", "sizes"]  # how many nodes those are
    level_count: Annotated[Ints, "rows", "levels x sizes"]  # and how many of each speed
    level_free: Annotated[Ints, "rows", "nodes"]  # GPUs that nodes of each speed have free, by its number
    trial_order: Annotated[Ints, "rows", "nodes"]  # nodes by usable GPUs, most first
    trial_bit: Annotated[Ints, "rows", "nodes"]  # their places among the nodes with usable GPUs
    trial_run_s: Annotated[Floats, "rows", "nodes"]  # run time of the current job if the node is taken next
    trial_speed: Annotated[Floats, "rows", "nodes"]  # slowest speed of that run
    trial_set: Annotated[Ints, "rows", "nodes"]  # nodes of a set, in the order in which they give
    best_set: Annotated[Ints, "rows", "nodes"]  # the best such set found
    node_class: Annotated[Ints, "rows", "nodes"]  # class of a node with free GPUs: nodes of a class are alike
    class_first: Annotated[
        Ints, "rows", "nodes + 1"
    ]  # nodes of class c are `class_node`[class_first[c]] up to the next
    class_node: Annotated[Ints, "rows", "nodes"]  # nodes by class, those of one as in `trial_order`
    offer_s: Annotated[Floats, "rows", "offers"]  # run time of a set that may become a candidate
    offer_hole: Annotated[Ints, "rows", "offers"]
    offer_size: Annotated[Ints, "rows", "offers"]  # its number of nodes
    offer_sign: Annotated[Longs, "rows", "offers"]  # the same for sets of the same classes
    offer_node: Annotated[Ints, "rows", "offers x nodes"]  # its nodes, in the order in which they give
    # Idle GPUs that could take a seat of a ring (simulator/handling/seats.py), and what is known of types in that ring
    seat_gpu: Annotated[Ints, "rows", "seats if holding"]
    seat_compute_s: Annotated[Floats, "rows", "seats if holding"]
    seat_sure_s: Annotated[Floats, "rows", "seats if holding"]
    seat_flops: Annotated[Floats, "rows", "seats if holding"]
    seat_from: Annotated[Floats, "rows", "seats if holding"]  # bytes per second from the neighbour before
    seat_to: Annotated[Floats, "rows", "seats if holding"]  # and to the one after
    seat_hazard: Annotated[Floats, "rows", "seats if holding"]
    record_type: Annotated[Ints, "rows", "nodes if holding"]  # a node type in the ring
    record_gpus: Annotated[Ints, "rows", "nodes if holding"]  # its GPUs there
    record_s: Annotated[Floats, "rows", "nodes if holding"]  # their compute times in an iteration, their sum first
    record_flops: Annotated[Floats, "rows", "nodes if holding"]  # FLOPs of that time at the type's peak
    tried_gpu: Annotated[Ints, "rows", "gpus if holding"]  # slow GPUs that are relieved for a try
    class_beside: Annotated[Ints, "rows", "classes"]  # usable GPUs that suit it, and not who holds the reservation
    other_job: Annotated[Ints, "rows", "others"]  # jobs that the policy may turn to
    lined_up: Annotated[Ints, "rows", "jobs if turns"]  # the queue as users take turns, as far as it was asked for
    line_at: Annotated[Ints, "rows", "jobs if turns"]  # of each line, the job up to which it is
    ahead_start_s: Annotated[Floats, "rows", "ahead"]  # start, inf if never
    ahead_end_s: Annotated[Floats, "rows", "ahead"]  # end
    ahead_job: Annotated[Ints, "rows", "ahead"]
    ahead_size: Annotated[Ints, "rows", "ahead"]  # its number of nodes
    ahead_node: Annotated[Ints, "rows", "ahead x nodes"]
    ahead_gives: Annotated[Ints, "rows", "ahead x nodes"]  # GPUs that each of them gives
    ahead_order: Annotated[Ints, "rows", "ahead"]  # their places by end, the earliest first
