"""A small network learns a sine on four processes that average their gradients, as on four GPUs."""

import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from longshore.reporting import Steps

STEPS = 300


def main() -> None:
    """Train, and print the loss of the first rank now and then."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")  # RANK, WORLD_SIZE and MASTER_ADDR come from Longshore
    rank = distributed.get_rank()
    gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
    print(f"rank {rank} of {distributed.get_world_size()} on GPU {gpu}", flush=True)
    torch.manual_seed(0)
    network = DistributedDataParallel(nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    torch.manual_seed(rank)  # each rank sees samples of its own
    steps = Steps()  # so that Longshore knows how far it is, and whether it becomes slow or hangs
    for step in range(1, STEPS + 1):
        steps.begin(step)
        x = torch.rand(256, 1) * 6.0 - 3.0
        loss = nn.functional.mse_loss(network(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    steps.done()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
