"""Mean gradients over processes that train one model: the same exchange for rings and for plans.

The mean is that of one process that trains on the whole batch. A parameter without a gradient on some processes counts
there as zero; one without on all of them keeps none, so that its optimizer does not touch it. Each gradient is divided
before it is summed, and numbers of 16 bits and less are summed as 32 bits, so no sum overflows whose mean does not.

Source: SPEC F8, P1.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..cluster.files.errors import InputError


class GradientExchange(Protocol):
    """Processes that sum tensors."""

    rank: int  # of this process among them
    size: int

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes, each of which has the same bits then."""


class Gathered(NamedTuple):
    """The gradients of a piece, as one process computed them."""

    flat: Tensor  # numbers of the dense ones, two flags for each parameter, and the extra vectors
    apart: dict[int, Tensor]  # by their place in the piece, those that are not among these numbers


class Averaged(NamedTuple):
    """The mean gradients of a piece."""

    gradients: Sequence[Tensor | None]
    extra: Tensor  # the mean of the extra vectors


class GradientPiece:
    """Parameters whose gradients travel in one flat tensor.

    Args:
        parameters: Of one kind, in an order that is the same on all processes.
        sparse_ids: Identities of parameters with sparse gradients: they have no room in the flat tensor.
    """

    def __init__(self, parameters: Sequence[Tensor], sparse_ids: Collection[int]) -> None:
        self.parameters = parameters
        self._dtype, self._device = _flat_dtype_and_device(parameters[0])
        self._is_sparse = [id(parameter) in sparse_ids for parameter in parameters]
        kinds = zip(parameters, self._is_sparse, strict=True)
        self._sizes = [0 if is_sparse else _real_numbers(parameter) for parameter, is_sparse in kinds]
        # Nearly all models take the short way: 1,000 parameters would take milliseconds more on the other one.
        self._is_usual = not any(self._is_sparse) and all(
            parameter.dtype is _gradient_dtype(parameter) is self._dtype for parameter in parameters
        )
        count = len(parameters)
        self._flags = torch.tensor([1.0] * count + [0.0] * count, dtype=self._dtype, device=self._device)

    def gather(self, extra: Sequence[Tensor] = (), wide: Mapping[int, Tensor] = MappingProxyType({})) -> Gathered:
        """Return the gradients as they are now.

        Args:
            extra: Vectors that are averaged as well.
            wide: Gradients that replace those of parameters, by their identities.
        """
        gradients = [parameter.grad for parameter in self.parameters]
        along = [vector.to(self._flags) for vector in extra]
        if self._is_usual and all(map(self._is_dense, gradients)):
            dense = (gradient.reshape(-1) for gradient in gradients if gradient is not None)
            return Gathered(torch.cat([*dense, self._flags, *along]), {})
        apart, parts, is_dense = dict[int, Tensor](), list[Tensor](), list[float]()
        for at, parameter in enumerate(self.parameters):
            found = wide.get(id(parameter), gradients[at])
            gradient = None if found is None else _as_sent(found)
            is_dense.append(float(gradient is not None and gradient.layout is torch.strided))
            if gradient is not None and (self._is_sparse[at] or not is_dense[at]):
                apart[at], gradient = gradient, None
            if gradient is None:
                parts.append(torch.zeros(self._sizes[at], dtype=self._dtype, device=self._device))
            else:
                parts.append(_flat_real(gradient, self._dtype))
        flags = torch.tensor([*is_dense, *(float(at in apart) for at in range(len(is_dense)))])
        return Gathered(torch.cat([*parts, flags.to(self._flags), *along]), apart)

    def finish_average(self, mean: Tensor, gathered: Gathered, exchange: GradientExchange, parts: int) -> Averaged:
        """Return the gradients in a mean, and exchange those that are not in it.

        Args:
            mean: Of the flat tensors of all processes.
            gathered: What this process has gathered.
            exchange: Of all processes.
            parts: Divisor of sums.
        """
        pieces = torch.split(mean, [*self._sizes, len(self._flags), len(mean) - sum(self._sizes) - len(self._flags)])
        if self._is_usual and torch.equal(pieces[-2] > 0, self._flags > 0):
            each = zip(self.parameters, pieces[:-2], strict=True)
            usual = [flat.view_as(to) if to.is_contiguous() else _shaped_like(flat, to) for to, flat in each]
            return Averaged(usual, pieces[-1])
        is_dense, is_apart = (pieces[-2].reshape(2, -1) > 0).tolist()
        found: list[Tensor | None] = []
        for at, parameter in enumerate(self.parameters):
            inside = pieces[at] if is_dense[at] and not self._is_sparse[at] else None
            if is_apart[at] and not is_dense[at]:
                found.append(_mean_of_sparse(parameter, gathered.apart.get(at), exchange, parts))
                continue
            if is_apart[at]:
                apart = _mean_of_sparse_and_dense(parameter, gathered.apart.get(at), exchange, parts)
                inside = apart if inside is None else inside + apart
            found.append(None if inside is None else _shaped_like(inside, parameter))
        return Averaged(found, pieces[-1])

    def _is_dense(self, gradient: Tensor | None) -> bool:
        return gradient is not None and gradient.dtype is self._dtype and gradient.layout is torch.strided

    def assign(self, gradients: Sequence[Tensor | None]) -> None:
        """Make tensors the gradients of the parameters."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient


class Gradients:
    """Gradients of one step, as this process computed them, until they are applied: they may be sent again.

    Args:
        pieces: Of all parameters, the same on all processes.
        wide: Gradients that replace those of parameters, by their identities.
    """

    def __init__(self, pieces: Sequence[GradientPiece], wide: Mapping[int, Tensor] = MappingProxyType({})) -> None:
        self._kept = [(piece, piece.gather(wide=wide)) for piece in pieces]
        self._means: list[Sequence[Tensor | None]] = []

    def average(self, exchange: GradientExchange, parts: int) -> None:
        """Compute the mean over all processes; what this process has computed does not change.

        Args:
            exchange: The processes.
            parts: Divisor of sums: a process may have several parts of a batch.

        Raises:
            Exception: Any that the exchange raises.
        """
        means = []
        for piece, own in self._kept:
            mean = own.flat / parts
            exchange.sum(mean)
            means.append(piece.finish_average(mean, own, exchange, parts).gradients)
        self._means = means

    def assign_means(self) -> None:
        """Make the means the gradients of the parameters; one that no process had a gradient for has none."""
        for (piece, _), gradients in zip(self._kept, self._means, strict=True):
            piece.assign(gradients)


def average_in_place(
    pieces: Sequence[GradientPiece], exchange: GradientExchange, parts: int, extra: Sequence[Tensor] = ()
) -> Tensor:
    """Replace gradients by their means, without a copy of what this process computed.

    Args:
        pieces: Of the parameters, the same on all processes.
        exchange: The processes.
        parts: Divisor of sums.
        extra: Vectors that are averaged with the first piece.

    Returns:
        The mean of the extra vectors, one vector.
    """
    found = torch.zeros(0)
    for at, piece in enumerate(pieces):
        own = piece.gather(() if at else extra)
        mean = own.flat.div_(parts)
        exchange.sum(mean)
        averaged = piece.finish_average(mean, own, exchange, parts)
        piece.assign(averaged.gradients)
        found = found if at else averaged.extra
    return found


class WideSums:
    """Sums of gradients of 16 bits and less over several parts of a batch in one process, as numbers of 32 bits.

    Args:
        parameters: Of the model.
        is_shared: Returns whether this process has several parts now; else gradients stay where they are.
    """

    def __init__(self, parameters: Sequence[Tensor], is_shared: Callable[[], bool]) -> None:
        self._sums: dict[int, Tensor] = {}
        self._is_shared = is_shared
        self._waiting = [each for each in parameters if each.dtype is not _sum_dtype(each)]  # for their first gradient
        self.watch_trained()

    def watch_trained(self) -> None:
        """Add up the gradients of parameters that are trained by now: layers may be thawed after the first step."""
        for parameter in self._waiting:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._add_gradient)  # type: ignore[no-untyped-call]
        self._waiting = [parameter for parameter in self._waiting if not parameter.requires_grad]

    def take(self) -> dict[int, Tensor]:
        """Return the sums by the identities of their parameters, and begin again."""
        found, self._sums = self._sums, {}
        return found

    def _add_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None and self._is_shared():
            gradient = parameter.grad.to(_sum_dtype(parameter))
            before = self._sums.get(id(parameter))
            self._sums[id(parameter)] = gradient if before is None else before + gradient
            parameter.grad = None


def pieces_of(
    parameters: Sequence[Tensor], sparse_ids: Collection[int] = (), max_bytes: float = inf
) -> list[GradientPiece]:
    """Return parameters as pieces, in their order.

    Args:
        parameters: Those that are trained, the same on all processes.
        sparse_ids: Identities of those with sparse gradients.
        max_bytes: Of a piece of several; then only neighbours are in one.
    """
    return [
        GradientPiece(it, sparse_ids)
        for it in (_grouped_by_dtype(parameters) if max_bytes == inf else _consecutive_groups(parameters, max_bytes))
    ]


def sparse_weight_ids(model: nn.Module) -> frozenset[int]:
    """Return the identities of weights whose modules give sparse gradients, such as `nn.Embedding(sparse=True)`."""
    found = ((module, getattr(module, "weight", None)) for module in model.modules())
    return frozenset(
        id(weight) for module, weight in found if weight is not None and getattr(module, "sparse", False) is True
    )


def check_parameters(model: nn.Module) -> None:
    """Check that the gradients of a model can be exchanged.

    Raises:
        InputError: If not.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InputError(f"the parameter {name} has no shape yet", "run the model once on a batch before")
        if not parameter.requires_grad:
            continue
        if type(parameter) not in (nn.Parameter, Tensor):
            problem = f"the parameter {name} is a {type(parameter).__name__}, whose gradients are not exchanged"
            raise InputError(problem, "train a model of plain tensors, or freeze it")
        is_dense = parameter.layout is torch.strided
        if not is_dense or parameter.is_quantized or parameter.is_meta:
            kind = "on the meta device" if parameter.is_meta else str(parameter.dtype if is_dense else parameter.layout)
            raise InputError(f"the parameter {name} is {kind}, whose gradients are not exchanged", "make it dense")


def _flat_dtype_and_device(parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    """Return the type in which the real numbers of a parameter's gradients are summed, and their device."""
    real = parameter.dtype.to_real()
    return real if real.itemsize >= 4 else torch.float32, parameter.device


def _gradient_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type of a parameter's gradients; before PyTorch 2.10 that is its own."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def _sum_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type in which the gradients of a parameter are added up."""
    dtype, _ = _flat_dtype_and_device(parameter)
    return dtype.to_complex() if parameter.is_complex() else dtype


def _real_numbers(parameter: Tensor) -> int:
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _grouped_by_dtype(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    found: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in parameters:
        found.setdefault(_flat_dtype_and_device(parameter), []).append(parameter)
    return list(found.values())


def _consecutive_groups(parameters: Sequence[Tensor], max_bytes: float) -> Iterator[list[Tensor]]:
    found, size = list[Tensor](), 0
    for parameter in parameters:
        if found and (
            _flat_dtype_and_device(parameter) != _flat_dtype_and_device(found[0]) or size + parameter.nbytes > max_bytes
        ):
            yield found
            found, size = [], 0
        found.append(parameter)
        size += parameter.nbytes
    if found:
        yield found


def _as_sent(gradient: Tensor) -> Tensor:
    """Return a gradient as it is sent: dense, or sparse by rows."""
    if gradient.layout is torch.strided or (gradient.layout is torch.sparse_coo and gradient.sparse_dim() == 1):
        return gradient
    return gradient.to_dense()


def _flat_real(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the real numbers of a gradient as one vector, whatever its strides are."""
    numbers = torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
    flat = numbers.reshape(-1)
    return flat if flat.dtype is dtype else flat.to(dtype)  # `to` takes microseconds even where nothing changes


def _shaped_like(numbers: Tensor, parameter: Tensor) -> Tensor:
    """Return real numbers as a gradient of a parameter, in its strides: fused optimizers use the memory alone."""
    if parameter.is_complex():
        shaped = torch.view_as_complex(numbers.reshape(*parameter.shape, 2).clone())
    else:
        shaped = numbers.view(parameter.shape)
    dtype = _gradient_dtype(parameter)
    shaped = shaped if shaped.dtype is dtype else shaped.to(dtype)
    if parameter.is_contiguous():
        return shaped
    return torch.empty_like(parameter, dtype=shaped.dtype, requires_grad=False).copy_(shaped)


def _mean_of_sparse_and_dense(
    parameter: Tensor, gradient: Tensor | None, exchange: GradientExchange, parts: int
) -> Tensor:
    """Return the mean of sparse gradients where other processes have dense ones, as real numbers."""
    dtype, device = _flat_dtype_and_device(parameter)
    if gradient is None:
        mean = torch.zeros(_real_numbers(parameter), dtype=dtype, device=device)
    else:
        mean = _flat_real(gradient if gradient.layout is torch.strided else gradient.to_dense(), dtype) / parts
    _sum_unless_empty(mean, exchange)
    return mean


def _mean_of_sparse(parameter: Tensor, gradient: Tensor | None, exchange: GradientExchange, parts: int) -> Tensor:
    """Return the mean of sparse gradients: the rows of all processes, added up where several have one."""
    wide, device = _sum_dtype(parameter), parameter.device
    rows = None if gradient is None else gradient.coalesce()
    counts = torch.zeros(exchange.size, dtype=torch.int64, device=device)
    counts[exchange.rank] = 0 if rows is None else rows.values().shape[0]
    _sum_unless_empty(counts, exchange)
    before, count = int(counts[: exchange.rank].sum()), int(counts[exchange.rank])
    indices = torch.zeros((1, int(counts.sum())), dtype=torch.int64, device=device)
    values = torch.zeros((indices.shape[1], *parameter.shape[1:]), dtype=wide, device=device)
    if rows is not None:
        indices[:, before : before + count] = rows.indices()
        values[before : before + count] = rows.values().to(wide) / parts
    _sum_unless_empty(indices, exchange)
    _sum_unless_empty(torch.view_as_real(values) if values.is_complex() else values, exchange)
    whole = torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False).coalesce()
    return whole.to(_gradient_dtype(parameter))


def _sum_unless_empty(tensor: Tensor, exchange: GradientExchange) -> None:
    """Sum a tensor in place, if it has any number: not every library accepts an empty one."""
    if tensor.numel():
        exchange.sum(tensor.view(-1))
