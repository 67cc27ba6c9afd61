"""Profiles, clusters and layers of tests."""

import numpy as np

from longshore.planner.hardware import DEFAULT, ExchangeCost, HostProfile, LayerRates
from longshore.planner.profile.profiling import LayerProfile, ModelProfile
from longshore.planner.request import GpuType

RATES = LayerRates(flop_s=1e-11, kept_byte_s=1e-10, parameter_s=1e-10, layer_s=1e-4)
HOST = HostProfile(
    name="ours", cores=2, memory_bytes=16e9, forward=RATES, backward=RATES, speeds=(1.0, 1.0, 0.66, 0.5),
    send=ExchangeCost(members=2, start_s=1e-4, byte_s=1e-9), update_start_s=1e-4, update_parameter_s=1e-9,
    reduce=tuple(ExchangeCost(members=members, start_s=1e-3, byte_s=1e-9 * members) for members in (2, 3, 4)),
    accuracy=DEFAULT.accuracy,
)  # fmt: skip


def a100(gpus: int, memory_bytes: float = 80e9) -> GpuType:
    return GpuType("a100", gpus, 312e12, memory_bytes, 8, 300e9, 25e9)


def v100(gpus: int) -> GpuType:
    return GpuType("v100", gpus, 125e12, 32e9, 8, 150e9, 12.5e9)


def gpt(
    layers: int = 24, hidden: int = 2048, sequence: int = 1024, words: int = 51_200, heads: int = 16
) -> ModelProfile:
    """Return a decoder by the formulas that are printed for it."""
    block = 24.0 * sequence * hidden**2 + 4.0 * sequence**2 * hidden
    head = 2.0 * sequence * hidden * words
    width = float(sequence * hidden)
    found = [layer("words", 0.0, words * hidden, 8.0 * sequence, float(sequence), 2.0 * width)]
    found += [
        layer(f"blocks.{i}", block, 12.0 * hidden**2, 34.0 * width, width, 2.0 * width).model_copy(
            update={"heads": heads, "is_block": True, "fixed_costs": 1.0}
        )
        for i in range(layers)
    ]
    found.append(layer("head", head, 0.0, 2.0 * width, width, 2.0 * sequence * words))
    return ModelProfile(name="gpt", rung="by formula", tokens_per_sample=sequence, layers=tuple(found))


def layer(name: str, flops: float, parameters: float, saved: float, elements: float, output: float) -> LayerProfile:
    return LayerProfile(
        name=name, forward_flops=flops, backward_flops=2.0 * flops, parameters=parameters, saved_bytes=saved,
        input_elements=elements, output_bytes=output,
    )  # fmt: skip


def any_model(rng: np.random.Generator) -> ModelProfile:
    """Return layers of any kind, some of them blocks."""
    count = int(rng.integers(2, 9))
    heads = int(rng.choice([0, 4, 8]))
    found = []
    for i in range(count):
        figures = 10.0 ** rng.uniform((9, 5, 5, 4, 4), (13, 9, 9, 7, 7))
        is_block = bool(rng.random() < 0.6)
        frozen = float(figures[1] * rng.choice([0.0, 0.0, 0.9, 1.0]))
        update = {
            "is_block": is_block, "heads": heads if is_block else 0, "fixed_costs": float(rng.random()),
            "frozen_parameters": frozen, "frozen_bytes": frozen * float(rng.choice([1.0, 2.0])),
        }  # fmt: skip
        found.append(layer(f"l{i}", *figures.tolist()).model_copy(update=update))
    return ModelProfile(name="any", rung="drawn", tokens_per_sample=1.0, layers=tuple(found))
