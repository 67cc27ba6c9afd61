"""The contract of a network, networks by name, and the policy that decides by one."""

from typing import Any, ClassVar, NamedTuple, Self

from numpy.typing import NDArray
from torch import Tensor, nn

from ...cluster.files.errors import PluginError
from ...cluster.files.plugins import load, registered
from .schema import Schema

Arrays = dict[str, NDArray[Any]]  # weights by name
MAX_OUTPUT = 1e30  # bound of logits and values: finite weights can still overflow
# Logits that differ by less are equal: rounding differs with the size of a batch, and between PyTorch and our kernels.
LOGIT_TIE = 1e-4


class ObservationLayout(NamedTuple):
    """Shape of a network's input and output."""

    globals: int  # features of the decision as a whole, first in the observation
    items: int  # GPUs, nodes or candidates, which follow one by one
    features: int  # features of each
    actions: int  # GPUs, nodes or candidates that can be chosen
    waiting: bool  # one more action at the end


class Network(nn.Module):
    """Actor and critic in one PyTorch module. Register a class of them under the group `longshore.networks`.

    The layout alone determines the network. So the shapes of a checkpoint's weights are known before any is read.
    Weights are floating numbers. A pass changes nothing in the network, as passes run on several threads.

    Args:
        layout: How it reads an observation.
        width: As in `sized_by`; only classes that have it are made with one.

    Attributes:
        actions: Kinds of actions that it can choose, some of `node`, `gpu` and `candidate` (docs/environments.md).
        any_size: Whether the same weights serve clusters of any size.
        sized_by: A weight whose last extent is the width that a network was made with. Checkpoints of one class may
            then have different widths; if it is empty, the layout alone determines the weights.
    """

    actions: ClassVar[tuple[str, ...]] = ("node", "gpu")
    any_size: ClassVar[bool] = True
    sized_by: ClassVar[str] = ""

    def __init__(self, layout: ObservationLayout, width: int = 0) -> None:
        super().__init__()
        self.layout, self.width = layout, width

    @classmethod
    def made_for(cls, schema: Schema, layout: ObservationLayout, *width: int) -> Self:
        """Return an untrained network for a schema; only a network that reads more of it than the layout has its own.

        Args:
            schema: Of the checkpoint.
            layout: Of the schema.
            width: As in `sized_by`, for classes that have it.
        """
        del schema
        return cls(layout, *width)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions), waiting last if the layout has it, and values of shape (batch,).

        Args:
            observation: Shape (batch, size); a network for any size takes other numbers of items than its layout's.
        """
        raise NotImplementedError

    @classmethod
    def with_later_features(cls, arrays: Arrays, was: ObservationLayout, now: ObservationLayout) -> Arrays | None:
        """Return the weights of a checkpoint for observations that have further features, None if there is no way.

        Features are only ever added behind the others. A network can return its weights with zeros for the added ones.

        Args:
            arrays: Weights by name.
            was: ObservationLayout that they are for.
            now: ObservationLayout with further features, global ones or those of each item.
        """
        del arrays, was, now
        return None

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,); worth writing where they take less than a whole pass."""
        values: Tensor = self(observation)[1]
        return values

    def compiled(self, name: str, schema: Schema) -> "LearnedPolicy | None":
        """Return a policy that decides by a compiled pass of this network, None if it has none and PyTorch decides.

        Args:
            name: Of the policy.
            schema: Of the checkpoint.
        """
        del name, schema
        return None


def find_network(name: str) -> type[Network]:
    """Return a network by its registered name.

    Raises:
        PluginError: If nothing of that name is registered, or what is registered is no network.
    """
    found = load("networks", name)
    if not (isinstance(found, type) and issubclass(found, Network)):
        value = registered("networks")[name].value
        raise PluginError(f"network {name!r} ({value}) is no subclass of longshore.agents.learned.network.Network")
    return found
