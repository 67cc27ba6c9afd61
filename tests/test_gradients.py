"""Gradients that several processes exchange are those of one process on the whole batch. Processes are threads here."""

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from longshore.cluster.files.errors import InputError
from longshore.ring.gradients import (
    Gradients,
    WideSums,
    average_in_place,
    check_parameters,
    pieces_of,
    sparse_weight_ids,
)

MOST = 4
WAIT_S = 30.0
POOL = ThreadPoolExecutor(MOST)
ResultT = TypeVar("ResultT")


class Meeting:
    """What threads put in and take out of a sum."""

    def __init__(self, size: int) -> None:
        self.barrier, self.tensors = threading.Barrier(size, timeout=WAIT_S), dict[int, Tensor]()


class Member:
    """One thread's side."""

    def __init__(self, rank: int, size: int, meeting: Meeting) -> None:
        self.rank, self.size, self._meeting = rank, size, meeting

    def sum(self, tensor: Tensor) -> None:
        assert tensor.is_contiguous()
        assert tensor.numel()
        assert not tensor.is_complex()
        self._meeting.tensors[self.rank] = tensor
        self._meeting.barrier.wait()
        assert len({(it.shape, it.dtype) for it in self._meeting.tensors.values()}) == 1
        whole = torch.stack([self._meeting.tensors[it] for it in range(self.size)]).sum(0, dtype=tensor.dtype)
        self._meeting.barrier.wait()
        tensor.copy_(whole)


def together(size: int, work: Callable[[Member], ResultT]) -> list[ResultT]:
    """Return what each of several threads makes of its side."""
    meeting = Meeting(size)

    def run(rank: int) -> ResultT:
        try:
            return work(Member(rank, size, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    return [it.result(WAIT_S) for it in [POOL.submit(run, rank) for rank in range(size)]]


DENSE = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
SHAPES = ((), (1,), (5,), (3, 4), (0,), (2, 0, 3), (2, 3, 2, 2))
SCALES = (1.0, 1e-4, 2e4)  # four times the last is more than 16 bits hold
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda it: it,
    "transposed": lambda it: it.transpose(0, -1) if it.dim() > 1 else it,
    "channels last": lambda it: it.to(memory_format=torch.channels_last) if it.dim() == 4 else it,
}
forms = st.tuples(
    st.sampled_from(DENSE), st.sampled_from(SHAPES), st.sampled_from(list(LAYOUTS)), st.sampled_from(SCALES),
    st.lists(st.sampled_from(["none", "dense", "sparse"]), min_size=MOST, max_size=MOST), st.booleans(),
)  # fmt: skip


def made(form: Any, at: int) -> tuple[nn.Parameter, list[Tensor | None], bool]:
    """Return a parameter, a gradient of it for each process, and whether it is known to have sparse ones."""
    dtype, shape, layout, scale, kinds, is_table = form
    parameter = nn.Parameter(LAYOUTS[layout](torch.zeros(shape, dtype=dtype)))
    can_be_sparse = parameter.dim() > 1 and parameter.numel() > 0
    found: list[Tensor | None] = []
    for rank, kind in enumerate(kinds):
        generator = torch.Generator().manual_seed(100 * at + rank)
        real = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
        gradient = real.clamp(-2e4, 2e4).to(dtype)
        if kind == "sparse" and can_be_sparse:
            rows = torch.tensor([0, len(gradient) - 1, 0])
            gradient = torch.sparse_coo_tensor(rows[None], gradient[rows], gradient.shape, check_invariants=True)
        found.append(None if kind == "none" else gradient)
    return parameter, found, is_table and can_be_sparse


def wide(gradient: Tensor) -> Tensor:
    dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64)


def check(parameter: nn.Parameter, given_: Sequence[Tensor | None], parts: int) -> None:
    there = [it for it in given_ if it is not None]
    mean = parameter.grad
    if not there:
        assert mean is None
        return
    assert mean is not None
    assert mean.dtype == parameter.dtype
    if all(it.layout is torch.sparse_coo for it in there):
        assert mean.layout is torch.sparse_coo
        assert {*mean.coalesce().indices()[0].tolist()} == {row for it in there for row in it._indices()[0].tolist()}
    else:
        assert mean.layout is torch.strided
        assert mean.stride() == parameter.stride() or not mean.numel()
    expected = torch.stack([wide(it) for it in there]).sum(0) / parts
    info = torch.finfo(parameter.dtype)
    size = torch.stack([wide(it).abs() for it in there]).sum(0).max().item() if expected.numel() else 0.0
    assert torch.allclose(wide(mean), expected, rtol=4 * info.eps, atol=4 * info.eps * size + info.tiny)


WAYS, SIZES = st.sampled_from(["at once", "kept"]), st.sampled_from([64.0, float("inf")])


@given(st.lists(forms, min_size=1, max_size=4), st.integers(1, MOST), st.integers(0, 2), WAYS, SIZES)
def test_means_are_those_of_all_gradients_together(
    given_forms: list[Any], size: int, further_parts: int, way: str, most_bytes: float
) -> None:
    """`further_parts`: of a batch with more parts than there are processes, as in a ring that is short of members."""
    parts = size + further_parts
    models = [[made(form, at) for at, form in enumerate(given_forms)] for _ in range(size)]
    beside: list[float] = []

    def work(member: Member) -> None:
        model = models[member.rank]
        for parameter, gradients, _ in model:
            parameter.grad = gradients[member.rank]
        tables = {id(parameter) for parameter, _, is_table in model if is_table}
        pieces = pieces_of([it for it, _, _ in model], tables, most_bytes)
        if way == "at once":
            beside.append(average_in_place(pieces, member, parts, [torch.tensor([1.0 + member.rank])])[0].item())
            return
        kept = Gradients(pieces)
        kept.average(member, parts)  # given up, and done again
        kept.average(member, parts)
        kept.assign_means()

    together(size, work)
    for model in models:
        for parameter, gradients, _ in model:
            check(parameter, gradients[:size], parts)
    assert beside == [pytest.approx(size * (size + 1) / 2 / parts)] * len(beside)


class Odd(nn.Module):
    """Parameters that are tied, frozen, unused, used for some samples alone, long, complex, sparse, or transposed."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6, sparse=sparse)
        self.first, self.again = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.frozen, self.unused, self.branch = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen.requires_grad_(requires_grad=False)
        self.long = nn.Linear(6, 6, dtype=torch.float64)
        self.waves = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.across = nn.Parameter(torch.randn(6, 4).t())
        self.picture = nn.Conv2d(1, 2, 2)
        self.picture.weight = nn.Parameter(torch.randn(2, 1, 2, 2).to(memory_format=torch.channels_last))
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words).mean(1)
        x = torch.tanh(self.again(torch.tanh(self.first(x))) + self.frozen(x))
        if bool((words[:, 0] > 8).any()):
            x = x + self.branch(x) * (words[:, :1] > 8)
        x = x + self.long(x.double()).float() + torch.fft.irfft(torch.fft.rfft(x) * self.waves, n=6)
        seen = self.picture(x.reshape(-1, 1, 2, 3)).flatten(1)
        found: Tensor = functional.linear(x, self.across).sum(1) + seen.sum(1) + self.nothing.sum()
        return found


def optimizers(model: Odd, *, sparse: bool, fused: bool) -> list[torch.optim.Optimizer]:
    table = [model.words.weight]
    rest = [it for it in model.parameters() if it.requires_grad and it is not table[0]]
    real = [it for it in rest if not it.is_complex()]
    waves = [it for it in rest if it.is_complex()]
    first: torch.optim.Optimizer = torch.optim.SparseAdam(table, 1e-2) if sparse else torch.optim.Adam(table, 1e-2)
    return [first, torch.optim.AdamW(real, 1e-2, weight_decay=0.1, fused=fused), torch.optim.SGD(waves, 0.1, 0.9)]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("size", [2, 3])
def test_training_together_is_training_alone(size: int, *, sparse: bool, is_known: bool) -> None:
    torch.manual_seed(5)
    whole = Odd(sparse=sparse)
    models = [copy.deepcopy(whole) for _ in range(size)]
    words = torch.randint(0, 11, (4, size * 2, 3))
    words[1, :, 0] = 0  # a step without the branch
    words[2, :, 0] = torch.tensor([10, *[0] * (2 * size - 1)])  # and one in which a single process has it

    def train(model: Odd, mine: slice, finish: Callable[[], object]) -> None:
        used = optimizers(model, sparse=sparse, fused=True)
        for step in words:
            model(step[mine]).square().mean().backward()
            finish()
            for it in used:
                it.step()
                it.zero_grad(set_to_none=True)

    def work(member: Member) -> None:
        model = models[member.rank]
        pieces = pieces_of(
            [it for it in model.parameters() if it.requires_grad], sparse_weight_ids(model) if is_known else ()
        )
        share = slice(2 * member.rank, 2 * member.rank + 2)
        train(model, share, lambda: average_in_place(pieces, member, member.size))

    train(whole, slice(None), lambda: None)
    together(size, work)
    for model in models:
        for (name, it), (_, other) in zip(whole.named_parameters(), model.named_parameters(), strict=True):
            assert torch.allclose(it, other, rtol=1e-4, atol=1e-5), name
    assert torch.equal(models[0].unused.weight, models[1].unused.weight)


@pytest.mark.parametrize("shares", [[4], [3, 1], [2, 2], [1, 1, 1, 1]])
def test_half_precision_holds_the_mean_however_the_parts_are_spread(shares: list[int]) -> None:
    """As in a ring that is short of members: the sum of four gradients of 20000 is more than fp16 holds."""

    def work(member: Member) -> list[float]:
        net = nn.Linear(1, 2, dtype=torch.float16)
        net.bias.requires_grad = False
        parameters = [it for it in net.parameters() if it.requires_grad]
        wide = WideSums(parameters, lambda: shares[member.rank] > 1)
        found = []
        for _ in range(2):
            for _ in range(shares[member.rank]):
                net(torch.full((1, 1), 20000.0, dtype=torch.float16)).sum().backward()
            gradients = Gradients(pieces_of(parameters), wide.take())
            gradients.average(member, 4)
            gradients.assign_means()
            assert net.weight.grad is not None
            found += net.weight.grad.flatten().tolist()
            net.zero_grad()
        return found

    assert together(len(shares), work) == [[20000.0] * 4] * len(shares)


def test_half_precision_of_layers_that_are_thawed_later_is_added_up_as_wide() -> None:
    net = nn.Linear(1, 1, bias=False, dtype=torch.float16).requires_grad_(requires_grad=False)
    wide = WideSums(list(net.parameters()), lambda: True)
    net.requires_grad_()
    for _ in range(2):  # a second beginning adds nothing twice
        wide.watch_trained()
    for _ in range(2):
        net(torch.full((1, 1), 40000.0, dtype=torch.float16)).sum().backward()
    assert [it.tolist() for it in wide.take().values()] == [[[80000.0]]]


def test_what_cannot_be_exchanged_is_refused_by_name() -> None:
    class Marked(Tensor):
        pass

    meta, lazy, sparse, marked = (nn.Linear(2, 2) for _ in range(4))
    meta.to("meta")
    lazy.register_module("late", nn.LazyLinear(3))
    sparse.rows = nn.Parameter(torch.eye(2).to_sparse())
    marked.own = nn.Parameter(torch.zeros(2).as_subclass(Marked))
    for model, name in ((meta, "weight"), (lazy, "late.weight"), (sparse, "rows"), (marked, "own")):
        with pytest.raises(InputError, match=f"the parameter {name} "):
            check_parameters(model)
    check_parameters(Odd(sparse=True))
    check_parameters(sparse.requires_grad_(requires_grad=False))
