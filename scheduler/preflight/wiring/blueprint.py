"""The file of expected wiring: what is plugged in where.

Source: SPEC C3.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ....cluster.files.output_file import replacing, write_text
from ....cluster.files.yaml_file import read_yaml, validated, yaml_text

PAGE = "docs/preflight.md"
Word = Annotated[str, Field(max_length=300)]
Index = Annotated[int, Field(ge=0, le=1023)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PortPlan(_Section):
    """What is expected of a network port; what is empty may be anything."""

    rate: Word = ""
    neighbour: Word = ""  # switch and its port
    cable: Word = ""  # such as copper or optical
    transceiver: Word = ""  # part number
    lanes: Annotated[int, Field(ge=0, le=64)] = 0  # 0 for any number
    gpus: tuple[Index, ...] = ()  # that use it; all of the node if left out


class NodePlan(_Section):
    """What is expected of a node."""

    gpus: dict[Index, Word] = {}  # UUID of each
    nvlinks: dict[Word, Word] = {}  # PCI address at the other end of each link, which is named GPU/LINK
    ports: dict[Word, PortPlan] = {}


class Blueprint(_Section):
    """The expected wiring of nodes, and what every link has to keep to."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    hold_s: Annotated[float, Field(ge=0.0, le=60.0)] = 0.1  # for which each criterion has to hold without a break
    most_bit_error_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-12  # of a lane
    transceivers: tuple[Word, ...] = ()  # part numbers that are allowed; any if left out
    nodes: dict[Word, NodePlan] = {}

    def gpus_of(self, node: str) -> dict[int, str]:
        """Return the UUIDs that are expected of a node."""
        return self.nodes[node].gpus if node in self.nodes else {}


def read_blueprint(path: Path) -> Blueprint:
    """Return the wiring that a file expects.

    Raises:
        InputError: If it cannot be used, naming the line.
    """
    file = read_yaml(path, PAGE)
    return validated(file, Blueprint, file.data)


def write_blueprint(path: Path, blueprint: Blueprint) -> None:
    """Write a file of expected wiring, in place of an older one.

    Raises:
        InputError: If it cannot be written.
    """
    text = yaml_text(blueprint.model_dump(mode="json"))
    with replacing(path) as part:
        write_text(part, text)
