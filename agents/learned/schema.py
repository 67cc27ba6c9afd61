"""The schema of a checkpoint: its network, features and training conditions, compared with its use."""

import json
import zipfile
import zlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from ...cluster.files.errors import CheckpointError
from ...cluster.model.outcome import Objective
from ...cluster.model.problem import ORDERS, Rules
from ...cluster.state.state import MAX_CANDIDATES
from ...envs.layout import (
    CANDIDATE_FEATURES,
    CANDIDATE_GLOBALS,
    GLOBALS,
    GPU_FEATURES,
    NODE_FEATURES,
    PATENT_FEATURES,
    PATENT_GLOBALS,
)
from ..protocol import Policy
from .archive import open_archive, read_entry, read_file

Word = Annotated[str, Field(max_length=100)]
USERS = "users"  # estimates as users give them, or learned from ended jobs
ANY_ESTIMATES = "mixed"  # several kinds of estimates: a policy trained on them fits each


class TrainedUnder(BaseModel):
    """The order regime and the knowledge that a policy was trained under."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    orders: Annotated[tuple[Word, ...], Field(min_length=1, max_length=100)]
    ageing_h: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None  # None: a job may be overtaken for ever
    waiting: bool
    estimates: Word  # of run times: exact, log-normal, class-mean, mixed, trace (as it has them) or users
    oracle: bool  # it had the true fault rates; else it estimated them


class UsedUnder(NamedTuple):
    """The conditions under which a policy is used."""

    orders: tuple[str, ...]  # empty where it is used under all
    ageing_h: float | None
    waiting: bool
    estimates: str
    oracle: bool


def conditions_of_use(rules: Rules, estimates: str) -> UsedUnder:
    """Return the conditions of use, by the rules and the kind of run-time estimates."""
    ageing_h = rules.ageing_s / 3600.0
    order = next(name for name, number in ORDERS.items() if number == rules.order)
    is_for_ever = ageing_h == float("inf")
    return UsedUnder(
        (order,), None if is_for_ever else ageing_h, bool(rules.waiting), estimates, not rules.estimated_hazards
    )


def conditions_of_training(policy: Policy) -> TrainedUnder | None:
    """Return what a policy, or the base of rollouts, was trained under; None if its schema does not have it."""
    schema = getattr(getattr(policy, "base", policy), "schema", None)
    found = getattr(schema, "trained", None)
    return found if isinstance(found, TrainedUnder) else None


def training_mismatch(policy: Policy, use: UsedUnder) -> str:
    """Return in one line how the use of a policy differs from its training; "" if it does not, or that is unknown."""
    trained = conditions_of_training(policy)
    if trained is None:
        return ""
    pairs = (
        (_orders_text(trained.orders), _orders_text(use.orders), set(use.orders) <= set(trained.orders)),
        (
            _ageing_text(trained.ageing_h),
            _ageing_text(use.ageing_h),
            not use.orders or trained.ageing_h == use.ageing_h,
        ),
        (_waiting_text(waits=trained.waiting), _waiting_text(waits=use.waiting), trained.waiting == use.waiting),
        (
            f"estimates {trained.estimates}",
            f"estimates {use.estimates}",
            trained.estimates in (ANY_ESTIMATES, use.estimates),
        ),
        (_rates_text(true=trained.oracle), _rates_text(true=use.oracle), trained.oracle == use.oracle),
    )
    differ = [f"{then} (here {now})" for then, now, fits in pairs if not fits]
    return f"it was trained under {', '.join(differ)}" if differ else ""


def _orders_text(names: tuple[str, ...]) -> str:
    return f"order {' or '.join(names)}"


def _ageing_text(ageing_h: float | None) -> str:
    return "no ageing" if ageing_h is None else f"ageing after {ageing_h:g} h"


def _waiting_text(*, waits: bool) -> str:
    return "waiting" if waits else "no waiting"


def _rates_text(*, true: bool) -> str:
    return "true fault rates" if true else "estimated fault rates"


SCHEMA, WEIGHTS = "schema.json", "weights.npz"  # entries of a checkpoint
MAX_SCHEMA_BYTES = 1 << 23  # of a cluster of a million nodes, 5 MB
MAX_SCHEMA_GPUS = 1_000_000  # as in cluster files
UNREADABLE = (  # errors of reading a file that is no checkpoint, or damaged
    CheckpointError, OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError, RuntimeError,
    OverflowError, RecursionError,
)  # fmt: skip
MAX_MARGIN = 1000.0  # above all differences of logits, so that the base heuristic decides
MAX_HIDDEN_LAYERS, MAX_UNITS = 16, 4096  # of a network, and units of a layer
Name = Annotated[str, Field(max_length=100)]
# FailFast: report one wrong value of a million, not all of them
Names = Annotated[tuple[Name, ...], Field(max_length=1000), FailFast()]
NodeGpus = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MAX_SCHEMA_GPUS)], ...], Field(max_length=MAX_SCHEMA_GPUS), FailFast()
]


Units = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MAX_UNITS)], ...], Field(max_length=MAX_HIDDEN_LAYERS), FailFast()
]


class HiddenLayers(BaseModel):
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
    # Objective whose remaining cost the value predicts; None: it predicts something else.
    time_to_go: Objective | None = None
    # Another candidate's logit must exceed that of the base heuristic's by this, so that small advantages, which may
    # be errors of the network, change nothing.
    margin: Annotated[float, Field(ge=0.0, le=MAX_MARGIN)] = 0.0
    trained: TrainedUnder | None = None  # None if unknown
    layers: HiddenLayers | None = None  # of the network `layers`; None: those that it has by itself

    @property
    def sees_only_gpu_count(self) -> bool:
        """Whether nothing of the cluster but the number of its GPUs is seen and chosen (SPEC R2, R4)."""
        return self.observation != "full" and self.action == "gpu"

    def fits(self, node_gpus: tuple[int, ...]) -> bool:
        """Whether a network that is tied to a cluster size can read a cluster of such nodes."""
        if self.action == "candidate":  # lists of candidates are as long on any cluster
            return True
        return sum(node_gpus) == self.gpus if self.sees_only_gpu_count else node_gpus == self.node_gpus

    @model_validator(mode="after")
    def _check_sizes(self) -> "Schema":
        items = item_count(self.action, self.observation, self.node_gpus)
        if self.gpus != sum(self.node_gpus) or self.items != items or not 0 < self.gpus <= MAX_SCHEMA_GPUS:
            raise ValueError(f"{self.gpus} GPUs and {self.items} items do not go with nodes of {self.node_gpus[:8]}")
        return self


def item_count(action: str, observation: str, node_gpus: tuple[int, ...]) -> int:
    """Return the number of items in an observation of a cluster with `node_gpus` GPUs on each node."""
    if action == "candidate":
        return MAX_CANDIDATES
    return len(node_gpus) if action == "node" and observation == "full" else sum(node_gpus)


def feature_names(action: str, observation: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of global features and of each item's features, in order."""
    if observation != "full":
        return PATENT_GLOBALS[observation], PATENT_FEATURES
    if action == "candidate":
        return CANDIDATE_GLOBALS, CANDIDATE_FEATURES
    return GLOBALS, NODE_FEATURES if action == "node" else GPU_FEATURES


def check_features(schema: Schema, source: str) -> None:
    """Refuse a schema whose features are not those that this version computes.

    Raises:
        CheckpointError: If they differ, naming the first that does.
    """
    if _version_numbers(schema.longshore) > _version_numbers(version("longshore")):
        raise CheckpointError(f"{source} was made by Longshore {schema.longshore}, newer than this one; upgrade")
    names = feature_names(schema.action, schema.observation)
    for kind, theirs, ours in zip(("global", "item"), (schema.globals, schema.features), names, strict=True):
        if theirs != ours:
            odd = sorted(set(theirs) - set(ours)) or sorted(set(ours) - set(theirs)) or ["their order"]
            raise CheckpointError(
                f"{source} was made with other {kind} features ({odd[0]}; {len(theirs)} of them, this version has "
                f"{len(ours)}); use Longshore {schema.longshore}, or train it again"
            )


def _version_numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, (0,) if there is none."""
    parts = [part for part in text.split(".")[:2] if part.isdecimal()]
    return tuple(int(part) for part in parts) or (0,)


def network_name_in(path: Path) -> str:
    """Return the network that a checkpoint names, without PyTorch; "" if it cannot be read: loading it reports why."""
    with suppress(*UNREADABLE), open_archive(read_file(path), (SCHEMA, WEIGHTS), packed=True) as archive:
        content = json.loads(read_entry(archive, SCHEMA, MAX_SCHEMA_BYTES))
        if isinstance(content, dict) and isinstance(content.get("network"), str):
            return str(content["network"])
    return ""
