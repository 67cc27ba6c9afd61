"""The training script of the benchmark of rings: a small network and Adam; a line with the time for each step and stop.

Arguments: steps, and the pause in each, in seconds.
"""

import hashlib
import os
import sys
import time

import torch

from benchmarks import namespaces
from longshore.ring import Ring, wire
from longshore.ring.member_client import MemberClient

WIDTH = 568  # 363,520 weights between the inner layers and to the last


def batch(shard: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the data of a shard of a step."""
    generator = torch.Generator().manual_seed(step * 1000 + shard)
    x = torch.randn(16, 64, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def width_of(state_bytes: int) -> int:
    """Return the width at which weights and Adam's two moments of them have a number of bytes, or a little more."""
    weights, width = state_bytes / 12, WIDTH  # 4 bytes for each of the three
    while width * (width + 67) + 1 < weights:
        width += 1
    return width


def make_model() -> torch.nn.Sequential:
    """Return the model, the same on all members."""
    torch.manual_seed(1)
    width = width_of(int(os.environ["STATE_BYTES"])) if "STATE_BYTES" in os.environ else WIDTH
    parts = [torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Linear(width, 1)]
    return torch.nn.Sequential(*parts)


def tell_stops() -> None:
    """Write when this member has stopped, which its connection alone knows."""
    send = MemberClient._send

    def saying(control: MemberClient, message: wire.Message) -> None:
        send(control, message)
        if isinstance(message, wire.Stopped):
            os.write(1, f"stopped {time.time():.6f} {message.generation}\n".encode())

    MemberClient._send = saying  # type: ignore[method-assign, assignment]


def tell_end(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write by what parameters and the optimizer's state of two runs are compared."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
            found.update(tensor.numpy().tobytes())
    os.write(1, f"end {found.hexdigest()}\n".encode())


def main() -> None:
    """Train, and write what came of it."""
    tell_stops()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with Ring(model, optimizer) as ring:
        for step in ring.steps(until=int(sys.argv[1])):
            for shard in ring.shards:
                x, y = batch(shard, step)
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
            time.sleep(float(sys.argv[2]))
            if ring.step():
                os.write(1, f"step {time.time():.6f} {step} {ring.generation}\n".encode())
    tell_end(model, optimizer)


if __name__ == "__main__":
    namespaces.enter()
    main()
