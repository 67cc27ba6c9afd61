"""What `make demo-failover` trains: a small network, whose loss is printed after each step of seat 0."""

import hashlib
import os
import time

import torch

from longshore.ring import Ring

SEED, STEPS = 7, int(os.environ.get("STEPS", "600"))


def batch(shard: int, shards: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one shard of the batch of a step: the same in every process and at any time."""
    generator = torch.Generator().manual_seed((SEED * STEPS + step) * shards + shard)
    x = torch.randn(64, 16, generator=generator)
    return x, (x.sum(1, keepdim=True) / 4).tanh()


def digest(model: torch.nn.Module) -> str:
    """Return the SHA-256 of all parameters."""
    return hashlib.sha256(b"".join(it.detach().numpy().tobytes() for it in model.parameters())).hexdigest()


def main() -> None:
    """Train."""
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    with Ring(model, torch.optim.Adam(model.parameters(), 1e-3)) as ring:
        print(f"member {ring.member} pid {os.getpid()} on {os.environ['LONGSHORE_NODE']}", flush=True)
        for step in ring.steps(until=STEPS):
            for shard in ring.shards:
                x, y = batch(shard, ring.seats, step)
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
            if ring.step(loss=loss) and ring.seat == 0:
                print(f"loss {step} {loss.item():.9f} {time.time():.4f}", flush=True)
            time.sleep(0.03)  # so that you can watch it
        print(f"sha256 {digest(model)}", flush=True)


if __name__ == "__main__":
    main()
