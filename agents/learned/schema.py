"""What a checkpoint was made for, written beside its weights and compared before they are used."""

import json
import zipfile
import zlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from ...cluster.files.errors import CheckpointError
from ...cluster.model.objective import Objective
from ...cluster.state.state import CANDIDATES
from ...envs.candidate_layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS
from ...envs.layout import GLOBALS, GPU_FEATURES, NODE_FEATURES
from .archive import open_archive, read_entry, read_file
from .old_names import with_todays_names
from .trained import Trained

SCHEMA, WEIGHTS = "schema.json", "weights.npz"  # entries of a checkpoint
MOST_SCHEMA_BYTES = 1 << 23  # of a cluster of a million nodes, 5 MB
MOST_GPUS = 1_000_000  # as in cluster files
UNREADABLE = (  # what comes of reading a file that is no checkpoint, or damaged
    CheckpointError, OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError, RuntimeError,
    OverflowError, RecursionError,
)  # fmt: skip
MOST_MARGIN = 1000.0  # above all differences of logits: the base heuristic decides
MOST_LAYERS, MOST_UNITS = 16, 4096  # of a network, and units of a layer
Name = Annotated[str, Field(max_length=100)]
# FailFast: one wrong value of a million is told, not a million of them
Names = Annotated[tuple[Name, ...], Field(max_length=1000), FailFast()]
NodeGpus = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_GPUS)], ...], Field(max_length=MOST_GPUS), FailFast()]


Units = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_UNITS)], ...], Field(max_length=MOST_LAYERS), FailFast()]


class Layers(BaseModel):
    """Fully connected layers of the network `layers`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Units  # units of each hidden layer of the policy network
    value: Units  # of the value network
    activation: Literal["tanh", "relu", "elu", "leaky_relu", "silu", "gelu", "sigmoid"] = "tanh"


class Schema(BaseModel):
    """Everything that must agree between a network and its use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    longshore: Name  # version that wrote it
    algorithm: Name
    network: Name  # as it is registered under longshore.networks
    action: Literal["gpu", "node", "candidate"]
    observation: Literal["patent", "patent-literal", "full"]
    waiting: bool
    globals: Names  # names of the global features, in order
    features: Names  # names of each item's features, in order
    items: int  # GPUs or nodes of the cluster that it was trained on, or candidates
    gpus: int
    node_gpus: NodeGpus  # GPUs of each node there
    time_to_go: Objective | None = (
        None  # objective of which the value tells what is still to come; None: it tells something else
    )
    # By how much another candidate's logit must exceed that of the base heuristic's, so that small advantages, which
    # may be errors of the network, change nothing.
    margin: Annotated[float, Field(ge=0.0, le=MOST_MARGIN)] = 0.0
    trained: Trained | None = None  # under what; None of checkpoints that do not say
    layers: Layers | None = None  # of the network `layers`; None: those that it has by itself

    @property
    def counts_gpus(self) -> bool:
        """Whether nothing of the cluster but the number of its GPUs is seen and chosen (SPEC R2, R4)."""
        return self.observation != "full" and self.action == "gpu"

    def fits(self, node_gpus: tuple[int, ...]) -> bool:
        """Say whether a network that is tied to what it sees can read a cluster of such nodes."""
        if self.action == "candidate":  # lists of candidates are as long on any cluster
            return True
        return sum(node_gpus) == self.gpus if self.counts_gpus else node_gpus == self.node_gpus

    @model_validator(mode="before")
    @classmethod
    def _todays_names(cls, content: object) -> object:
        return with_todays_names(content)

    @model_validator(mode="after")
    def _sizes_agree(self) -> "Schema":
        items = item_count(self.action, self.observation, self.node_gpus)
        if self.gpus != sum(self.node_gpus) or self.items != items or not 0 < self.gpus <= MOST_GPUS:
            raise ValueError(f"{self.gpus} GPUs and {self.items} items do not go with nodes of {self.node_gpus[:8]}")
        return self


def item_count(action: str, observation: str, node_gpus: tuple[int, ...]) -> int:
    """Return how many items an observation of a cluster describes, whose nodes have so many GPUs."""
    if action == "candidate":
        return CANDIDATES
    return len(node_gpus) if action == "node" and observation == "full" else sum(node_gpus)


def feature_names(action: str, observation: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of global features and of each item's features, in order."""
    if observation != "full":
        of_job = {"patent": ("gpus", "estimate_h"), "patent-literal": ("job_gpus", "job_estimate_h")}
        return of_job[observation], ("used",)
    if action == "candidate":
        return CANDIDATE_GLOBALS, CANDIDATE_FEATURES
    return GLOBALS, NODE_FEATURES if action == "node" else GPU_FEATURES


def check_features(schema: Schema, source: str) -> None:
    """Refuse a schema whose features are not those that this version computes.

    Those that this version adds behind them are no difference.

    Raises:
        CheckpointError: If they differ, naming the first that does.
    """
    if _release(schema.longshore) > _release(version("longshore")):
        raise CheckpointError(f"{source} was made by Longshore {schema.longshore}, newer than this one; upgrade")
    names = feature_names(schema.action, schema.observation)
    for kind, theirs, ours in zip(("global", "item"), (schema.globals, schema.features), names, strict=True):
        if not theirs or theirs != ours[: len(theirs)]:
            odd = sorted(set(theirs) - set(ours)) or sorted(set(ours) - set(theirs)) or ["their order"]
            raise CheckpointError(
                f"{source} was made with other {kind} features ({odd[0]}; {len(theirs)} of them, this version has "
                f"{len(ours)}); use Longshore {schema.longshore}, or train it again"
            )


def with_todays_features(schema: Schema) -> Schema:
    """Return a schema with the features that this version computes."""
    of_all, of_item = feature_names(schema.action, schema.observation)
    return schema.model_copy(update={"globals": of_all, "features": of_item})


def _release(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, (0,) if there is none."""
    parts = [part for part in text.split(".")[:2] if part.isdecimal()]
    return tuple(int(part) for part in parts) or (0,)


def network_in(path: Path) -> str:
    """Return the network that a checkpoint names, without PyTorch; "" if that cannot be known: loading it says why."""
    with suppress(*UNREADABLE), open_archive(read_file(path), (SCHEMA, WEIGHTS), packed=True) as archive:
        content = with_todays_names(json.loads(read_entry(archive, SCHEMA, MOST_SCHEMA_BYTES)))
        if isinstance(content, dict) and isinstance(content.get("network"), str):
            return str(content["network"])
    return ""
