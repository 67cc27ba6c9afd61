"""The ways to profile a model, in order of cost: without weights, then a run on the CPU. The first that works is used.

Without weights, the user's hints replace layers that cannot run. The profile names its rung.

Source: SPEC P1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry, register_flop_formula, sdpa_flop_count

from .building import BuildError, BuiltModel, LayerHint, call_build, user_line
from .profiling import LayerProfile
from .recording import LayerCall, LayerError, LayerFigures, Recorder, element_bytes_by_name, type_and_first_line

DECODER_PRODUCTS = 6.0  # of a decoder layer: three projections, attention, the fourth projection, and two of the MLP
ADDED = tuple(
    field.name for field in fields(LayerFigures) if field.name not in ("heads", "products")
)  # figures that grow with samples


def layer_profiles(calls: Sequence[LayerCall], samples: int) -> list[LayerProfile]:
    """Return the layers of a recorded step, for one of its samples."""
    return [_layer_profile(call, {name: getattr(call.figures, name) / samples for name in ADDED}) for call in calls]


def layers_by_added_samples(calls: Sequence[LayerCall], twice: Sequence[LayerCall], samples: int) -> list[LayerProfile]:
    """Return the layers of two recorded steps, for one sample: what each of N more samples adds, without fixed parts.

    Raises:
        LayerError: If the two do not have the same layers.
    """
    if [call.name for call in twice] != [call.name for call in calls]:
        raise LayerError(f"the model runs other layers with {2 * samples} samples than with {samples}")
    return [
        _layer_profile(
            one, {name: max(0.0, getattr(two.figures, name) - getattr(one.figures, name)) / samples for name in ADDED}
        )
        for one, two in zip(calls, twice, strict=True)
    ]


def _layer_profile(call: LayerCall, per_sample: dict[str, float]) -> LayerProfile:
    is_decoder = call.is_block and call.figures.heads > 0
    return LayerProfile(
        name=call.name[-300:],
        kind=call.kind[:300],
        **call.weights._asdict(),
        heads=call.figures.heads,
        is_block=call.is_block,
        fixed_costs=1.0 if is_decoder else call.figures.products / DECODER_PRODUCTS,
        **per_sample,
    )


META, CPU = "without weights (meta device)", "run on the CPU with {} and {} samples"
OUT_OF_MEMORY = "it exceeds its memory limit"
INITIALISERS = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]


class RungProfile(NamedTuple):
    """The result of a rung."""

    rung: str
    tokens_per_sample: int
    layers: list[LayerProfile]
    notes: tuple[str, ...]
    min_samples: int


def profile_by_rungs(build: Callable[[], Any], hints: Mapping[str, LayerHint], flop_formulas: int) -> RungProfile:
    """Return the profile by the first rung that works.

    Args:
        build: The user's function.
        hints: Of the user.
        flop_formulas: FLOP formulas that the user's file has registered.

    Raises:
        BuildError: If what the function returns cannot be used on any device, or if no rung works; the message then
            has the reason of each.
    """
    try:
        return _profile_without_weights(build, hints, flop_formulas)
    except Exception as error:  # a user's model may raise anything
        first, first_at = _error_reason(error), user_line(error)
        if isinstance(error, BuildError):
            raise
    try:
        return _profile_on_cpu(build, hints, first)
    except BuildError:
        raise
    except Exception as error:
        second, second_at = _error_reason(error), user_line(error)
        fix = "give a table of its layers, or a profile_hint" if OUT_OF_MEMORY not in second else "raise --memory-limit"
        one, two = (f"{reason} ({at})" if at else reason for reason, at in ((first, first_at), (second, second_at)))
        if first_at == second_at and _mistake_key(first, first_at) == _mistake_key(second, second_at):
            raise BuildError(f"{two}, with weights and without; correct it, or {fix}") from error
        raise BuildError(f"without weights: {one}, on the CPU: {two}; {fix}") from error


def _profile_without_weights(
    build: Callable[[], Any], hints: Mapping[str, LayerHint], flop_formulas: int
) -> RungProfile:
    with _default_dtype(torch.bfloat16), torch.device("meta"):
        with _skip_weight_initialisation():
            made = call_build(build)
        widths = element_bytes_by_name(made.model)
        made = made.to("meta", torch.bfloat16)
        calls = Recorder(made.model, hints, 1.0, widths).record(made.run_forward)
        least = _min_samples(made)
    hinted = sum(call.hinted for call in calls)
    parts = [META]
    parts += [f"{hinted} layers by profile_hint"] if hinted else []
    parts += [f"{flop_formulas} FLOP formulas of yours"] if flop_formulas else []
    layers = layer_profiles(calls, made.samples)
    return RungProfile(", ".join(parts), made.tokens_per_sample, layers, (), least)


def _sample_counts(made: BuiltModel) -> list[int]:
    """Return the batch sizes to try: some models do not train on one sample, such as batch norm after pooling."""
    return sorted({1, 2, made.samples})


def _min_samples(made: BuiltModel) -> int:
    """Return the smallest batch size that works, of those to try; the model's own works."""
    for samples in _sample_counts(made):
        with suppress(Exception):  # a user's model may raise anything
            made.with_samples(samples).run_forward()
            return samples
    return made.samples


def _profile_on_cpu(build: Callable[[], Any], hints: Mapping[str, LayerHint], first_problem: str) -> RungProfile:
    _register_cpu_attention_flops()
    made = call_build(build)
    widths = element_bytes_by_name(made.model)
    made = made.to("cpu", torch.float32)
    problems: dict[int, Exception] = {}
    for samples in _sample_counts(made):
        try:
            with _disable_fused_kernels():
                # numbers have 2 bytes in training, here 4
                one, two = (
                    Recorder(made.model, hints, 0.5, widths).record(made.with_samples(count).run_forward)
                    for count in (samples, 2 * samples)
                )
            layers = layers_by_added_samples(one, two, samples)
        except Exception as error:  # a user's model may raise anything
            problems[samples] = error
            continue
        note = f"it does not run without weights: {first_problem}"[:300]
        return RungProfile(CPU.format(samples, 2 * samples), made.tokens_per_sample, layers, (note,), samples)
    raise problems[made.samples]  # of the unchanged example


def _error_reason(error: BaseException) -> str:
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return OUT_OF_MEMORY
    return str(error) if isinstance(error, LayerError | BuildError) else type_and_first_line(error)


def _mistake_key(reason: str, at_line: str) -> list[str]:
    """Return a key that is equal for two errors of one mistake, which devices report in other words."""
    if reason.startswith("layer "):
        return reason.split(": ")[:2]
    return reason.split(": ")[:1] if at_line else [reason]


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _skip_weight_initialisation() -> Iterator[None]:
    """Skip the initialisation of weights, which have no content here; it would take seconds."""
    kept = {name: getattr(nn.init, name) for name in INITIALISERS}

    def untouched(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        del args, kwargs
        return tensor

    with ExitStack() as stack:
        for name, function in kept.items():
            stack.callback(setattr, nn.init, name, function)
            setattr(nn.init, name, untouched)
        yield


@contextmanager
def _disable_fused_kernels() -> Iterator[None]:
    """Disable fused kernels of the CPU: they would hide the products of an LSTM."""
    before = torch.backends.mkldnn.set_flags(_enabled=False)[0]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)  # type: ignore[no-untyped-call]


def _register_cpu_attention_flops() -> None:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if kernel not in flop_registry:

        @register_flop_formula(kernel)
        def _(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
            del args, kwargs
            return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def call_without_checkpointing(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replace `torch.utils.checkpoint.checkpoint`: the plan decides what is recomputed, not the model."""
    own = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")
    return function(*args, **{name: value for name, value in kwargs.items() if name not in own})
