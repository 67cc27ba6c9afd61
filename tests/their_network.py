"""A stranger's network, as a package of its own."""

from pathlib import Path

import pytest

from tests.packages import install

NETWORK = """
import torch
from torch import nn
from longshore.agents.learned.network import Network


class TheirNetwork(Network):
    def __init__(self, layout):
        super().__init__(layout)
        self.score, self.value = nn.Linear(layout.features, 1), nn.Linear(layout.globals, 1)
        self.wait = nn.Linear(layout.globals, 1)

    def forward(self, observation):
        decision = observation[:, : self.layout.globals]
        items = observation[:, self.layout.globals :].unflatten(1, (-1, self.layout.features))
        logits = self.score(items).squeeze(-1)
        if self.layout.waiting:
            logits = torch.cat((logits, self.wait(decision)), 1)
        return logits, self.value(decision).squeeze(-1)
"""


def install_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = NETWORK, name: str = "TheirNetwork"
) -> None:
    """Put a package with a network `theirs` on the path, until the end of the test."""
    install(folder, monkeypatch, "networks", {"theirs": f"their_network:{name}"}, their_network=text)


def with_actions(actions: tuple[str, ...]) -> str:
    """Return the text of the network that scores these actions."""
    return NETWORK.replace("    def __init__", f"    actions = {actions}\n\n    def __init__")
