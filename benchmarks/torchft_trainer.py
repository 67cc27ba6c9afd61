"""The training script of the benchmark of rings under torchft: the same model, data and optimizer.

Arguments: number of this replica, steps, and the pause in each, in seconds. Run by the Python of torchft's environment.
"""

import os
import sys
import time
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]

from benchmarks.ring_trainer import batch, make_model


def main(replica: int, steps: int, pause_s: float) -> None:
    """Train as one replica group of one process, with torchft's own defaults."""
    model = make_model()
    inner = torch.optim.Adam(model.parameters(), 1e-3)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica-{replica}",
    )
    ring, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    while manager.current_step() < steps:
        x, y = batch(replica, manager.current_step())
        optimizer.zero_grad()  # determines which members take part in the step
        torch.nn.functional.mse_loss(ring(x), y).backward()  # type: ignore[no-untyped-call]
        time.sleep(pause_s)
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            os.write(1, f"step {time.time():.6f} {before} {manager.num_participants()}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # what is left of a group may wait for the dead
