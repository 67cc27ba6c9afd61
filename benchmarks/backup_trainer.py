"""The training script of the benchmark of backups: each shard takes a while, four times as long on a slow member.

Its computing is a wait, so that the cores of the machine are no bottleneck. Arguments: steps, and seconds for a shard.
A member is slow as long as there is a file `slow-NUMBER` in its folder.
"""

import os
import sys
import time
from pathlib import Path

import torch

from benchmarks.ring_trainer import batch, make_model, tell_end
from longshore.ring import Ring

SLOW = 4.0  # times as long


def main() -> None:
    """Train, and write the time of each step, and the loss of each shard of it."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with Ring(model, optimizer) as ring:
        for step in ring.steps(until=int(sys.argv[1])):
            losses = {}
            for shard in ring.shards:
                x, y = batch(shard, step)
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                losses[shard] = float(loss)
                time.sleep(float(sys.argv[2]) * (SLOW if Path(f"slow-{ring.member}").exists() else 1.0))
            if ring.step():
                lines = [f"step {time.time():.6f} {step} {ring.generation}"]
                lines += [f"loss {step} {shard} {value!r}" for shard, value in losses.items()]
                os.write(1, "".join(f"{line}\n" for line in lines).encode())
    tell_end(model, optimizer)


if __name__ == "__main__":
    main()
