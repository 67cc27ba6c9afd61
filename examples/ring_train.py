"""A training script whose ring outlives its members.

    python -m longshore.ring --seats 4 --spares 1 -- python examples/ring_train.py

Kill one of its processes while it runs: the others go on with the spare, and no step is lost.
"""

import torch

from longshore.ring import Ring

SEED, STEPS = 7, 2_000


def batch(shard: int, shards: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one shard of the batch of a step: the same in every process and at any time."""
    generator = torch.Generator().manual_seed((SEED * STEPS + step) * shards + shard)
    x = torch.randn(64, 16, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def main() -> None:
    """Train."""
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 500, 0.5)
    with Ring(model, optimizer, checkpoints="checkpoints") as ring:
        ring.keep("schedule", schedule)
        for step in ring.steps(until=STEPS):
            for shard in ring.shards:
                x, y = batch(shard, ring.seats, step)
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
            if ring.step(before=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), loss=loss):
                schedule.step()
                if step % 100 == 99:
                    ring.save()
                    print(f"step {step}, seat {ring.seat}, generation {ring.generation}, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
