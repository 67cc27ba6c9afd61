"""The smallest training script that has a ring, for tests of what is around it."""


def tiny(first: str = "", until: str = "3", last: str = "") -> str:
    """Return a script.

    Args:
        first: What it does before it has a model.
        until: The steps that it takes; may name `ring.seat`.
        last: What it does after its ring is done.
    """
    return (
        f"import os, pathlib, sys, time, torch\n"
        f"from longshore.ring import Ring\n"
        f"{first}\n"
        f"model = torch.nn.Linear(2, 1)\n"
        f"with Ring(model, torch.optim.SGD(model.parameters(), 0.1)) as ring:\n"
        f"    for step in ring.steps(until={until}):\n"
        f"        model(torch.ones(1, 2)).sum().backward()\n"
        f"        ring.step()\n"
        f"{last}\n"
    )
