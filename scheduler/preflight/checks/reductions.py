"""A reduction over all chosen accelerators, of whole numbers, so that its answer is exact.

Source: SPEC C2.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..check import WRONG, Check, Finding, Need, Outcome, Stage, incomplete, passed
from ..context import Context, Group
from ..groups import join, patience, wait_for

if TYPE_CHECKING:
    from torch import Tensor

ELEMENTS = 1 << 16
PERIOD = 7  # of the pattern 1, 2, ... 7, 1, 2, ...


def reduce(context: Context) -> Iterator[Finding]:
    """Sum up what each accelerator sends; the r-th sends r times the pattern."""
    group = context.group
    if group is None:
        return
    try:
        members = join(context)
        total = _own_sum(context, group)
        wait_for(members.allreduce([total]), patience(context))
    except RuntimeError as error:
        told = " ".join(str(error).split())[:200]
        yield incomplete(
            f"the others did not answer: {told}", "look at the node that is killed or dead, and at the links"
        )
        return
    yield _judge(total.cpu(), sum(group.shares))


def _own_sum(context: Context, group: Group) -> "Tensor":
    """Return the sum of what this node's accelerators send, made on the first of them."""
    rank = group.members.index(context.node)
    first = 1 + sum(group.shares[:rank])
    home = context.where(context.chosen.gpus[0])
    total = first * _pattern(home)
    for at, gpu in enumerate(context.chosen.gpus[1:], start=1):
        total += ((first + at) * _pattern(context.where(gpu))).to(home)
    return total if context.workload.backend == "nccl" and home != "cpu" else total.cpu()


def _pattern(where: str) -> "Tensor":
    import torch

    return (torch.arange(ELEMENTS, dtype=torch.int64, device=where) % PERIOD) + 1


def _judge(total: "Tensor", accelerators: int) -> Finding:
    wanted = accelerators * (accelerators + 1) // 2 * _pattern("cpu")
    wrong = (total != wanted).nonzero()
    if not len(wrong):
        return passed(got=f"{accelerators} accelerators, {ELEMENTS} elements right")
    first = int(wrong[0])
    got = f"{int(total[first])} at [{first}], {len(wrong)} of {ELEMENTS} elements wrong"
    return Finding(Outcome.FAIL, "all-reduce", got, str(int(wanted[first])), "pair.isolate names the node", text=WRONG)


REDUCE = Check(
    "reduce.answer", 1, "a reduction over all chosen accelerators is exact", 2.0, reduce, (Need.SEVERAL,), Stage.GROUP
)
ISOLATE = Check(
    "pair.isolate", 1, "the same in pairs, then suspects with good ones: names who makes it wrong", 2.0, reduce, (),
    Stage.ASKED,
)  # fmt: skip
