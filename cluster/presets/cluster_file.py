"""Cluster files: node types, racks, hazards, run-time model and faults, in YAML; see docs/clusters.md."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field, model_validator

from ..faults.models import FAULT_MODELS, FaultConfiguration, FaultDraw
from ..files.errors import InputError, raise_all
from ..files.input_problems import MAX_REPORTED, Place, name_advice, shortened
from ..files.yaml_file import YamlFile, omitted_problems, read_yaml, validated
from ..model.problem import DEFAULT_HAZARD_PER_S, MOST_RESTART_S, ORDERS, Rules
from ..model.topology import Cluster, NodeOffer
from ..switching import FORMULAS

MAX_GPUS = 1_000_000
# Far beyond any hardware, and close enough that sums and quotients of run times stay finite.
LEAST_SPEED, MOST_SPEED = 1e-6, 1e6
LEAST_CHECKPOINT_S, MOST_CHECKPOINT_S = 1e-3, 1e30
DAY_S = 86_400.0

Count = Annotated[int, Field(ge=1, le=MAX_GPUS)]
NotNegative = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Flops = Annotated[float, Field(ge=1e6, le=1e24)]
Bytes = Annotated[float, Field(ge=1, le=1e18)]
BytesPerS = Annotated[float, Field(ge=1, le=1e18)]
Speed = Annotated[float, Field(ge=LEAST_SPEED, le=MOST_SPEED)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


def _check_checkpoint_interval(value: float) -> float:
    """Refuse an interval that no sum or quotient of times stands."""
    if LEAST_CHECKPOINT_S <= value <= MOST_CHECKPOINT_S or value == float("inf"):
        return value
    span = f"from {LEAST_CHECKPOINT_S:g} to {MOST_CHECKPOINT_S:g} s"
    raise ValueError(f"{value:g} cannot be used; it should be {span}, or .inf for no checkpoints")


class NodeType(BaseModel, frozen=True, extra="forbid", strict=True):
    """A kind of node; its GPUs are all alike."""

    gpus: Count
    peak_flops: Flops  # of one GPU, FLOP/s
    memory_bytes: Bytes  # of one GPU
    speed: Speed | None = None  # of one GPU; None: peak_flops over that of the reference type
    intra_bytes_per_s: BytesPerS = 150e9  # between two GPUs of the node: NVLink of a V100
    nic_bytes_per_s: BytesPerS = 12.5e9  # between the node and others of its rack: 100 Gbit/s
    hazard_per_s: NotNegative = DEFAULT_HAZARD_PER_S  # faults of one GPU
    cpus: Count | None = None  # of the node; None: it has enough for any job
    host_memory_bytes: Bytes | None = None  # of the node, in the same way
    host_bytes_per_s: BytesPerS | None = None  # between a GPU and host memory; None: no plan puts state there

    def offer(self, name: str) -> NodeOffer:
        """Return what a node of this type offers to each of its GPUs."""
        host = [math.inf if whole is None else whole / self.gpus for whole in (self.cpus, self.host_memory_bytes)]
        return NodeOffer(name, self.memory_bytes, *host)


class NodeGroup(BaseModel, frozen=True, extra="forbid", strict=True):
    """Nodes of one type that stand side by side in a rack."""

    type: Name
    count: Count = 1
    name: Name | None = None  # of a single node
    hazard_per_s: NotNegative | None = None  # of one GPU, in place of the type's

    @model_validator(mode="after")
    def _check_name_is_for_one_node(self) -> Self:
        if self.name is not None and self.count > 1:
            raise ValueError(
                f"the name {shortened(self.name)} cannot stand for {self.count} nodes; leave out name or count"
            )
        return self


class Rack(BaseModel, frozen=True, extra="forbid", strict=True):
    """A rack, or several that are alike."""

    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1, strict=False)]
    count: Count = 1
    uplink_bytes_per_s: BytesPerS = 50e9  # between the rack and others: 400 Gbit/s


class RunTime(BaseModel, frozen=True, extra="forbid", strict=True):
    """How long a job takes on a placement (docs/simulator.md)."""

    model: Literal["ring", "simple"] = "ring"
    node_penalty: NotNegative | None = None  # of the simple model: slower by this for each node beyond the first

    @model_validator(mode="after")
    def _check_penalty_is_for_simple_model(self) -> Self:
        if self.model == "ring" and self.node_penalty is not None:
            raise ValueError("node_penalty belongs to the simple model; leave it out, or write model: simple")
        return self


class ClusterFile(BaseModel, frozen=True, extra="forbid", strict=True):
    """A cluster file as it stands; see docs/clusters.md."""

    node_types: Annotated[dict[Name, NodeType], Field(min_length=1)]
    racks: Annotated[tuple[Rack, ...], Field(min_length=1, strict=False)]
    name: Name | None = None  # None: the file's name
    reference_type: Name | None = None  # its GPUs have speed 1; None: the first type
    run_time: RunTime = RunTime()
    checkpoint_s: Annotated[float, Field(gt=0), AfterValidator(_check_checkpoint_interval)] = (
        3600.0  # infinite: no checkpoints
    )
    # Meta RSC: 5 to 20 min for large jobs; Sia: 15 to 250 s for small ones
    restart_s: Annotated[float, Field(ge=0, le=MOST_RESTART_S)] = 300.0
    faults: dict[str, object] = {"model": "none"}


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """A cluster with the constants of a simulation on it."""

    name: str
    cluster: Cluster
    rules: Rules  # strict FIFO without ageing and waiting; `_replace` changes that
    node_names: tuple[str, ...]
    offers: tuple[NodeOffer, ...]  # of the node types; `cluster.node_type` counts in them
    host_bytes_per_s: tuple[float, ...]  # of the node types, between a GPU and host memory; 0 where the file has none
    hazard_per_s: NDArray[np.float64]  # (gpus,) fault rate of each GPU before the fault model
    faults: FaultConfiguration

    @property
    def type_names(self) -> tuple[str, ...]:
        """Names of the node types."""
        return tuple(offer.gpu_type for offer in self.offers)


def read_cluster(path: Path) -> ClusterSetup:
    """Return the cluster that a cluster file describes.

    Raises:
        InputError: If the file cannot be read or used; one line with the file, its line, the field, and what to do.
    """
    file = read_yaml(path, "docs/clusters.md")
    content = validated(file, ClusterFile, file.data)
    _check_references(file, content)
    racks = [rack for rack in content.racks for _ in range(rack.count)]
    reference = content.node_types[content.reference_type or next(iter(content.node_types))]
    _check_speeds(file, content, reference)
    cluster = _cluster_of_file(content, racks, reference)
    hazard_per_s = np.repeat(_node_hazards_per_s(content, racks), np.diff(cluster.first_gpu))
    faults = _fault_configuration(file, content.faults)
    return ClusterSetup(
        name=content.name or path.stem,
        cluster=cluster,
        rules=_with_fault_handling(_rules_of_file(content, reference), faults),
        node_names=_node_names(file, content),
        offers=tuple(kind.offer(name) for name, kind in content.node_types.items()),
        host_bytes_per_s=tuple(kind.host_bytes_per_s or 0.0 for kind in content.node_types.values()),
        hazard_per_s=hazard_per_s,
        faults=faults,
    )


def draw_faults(setup: ClusterSetup, seed: int) -> FaultDraw:
    """Return the rates of the fault sources, shape (sources,), and the fault process of a cluster.

    Args:
        setup: The cluster and its fault model.
        seed: Decides what the model draws, such as which nodes are lemons.
    """
    return setup.faults.draw(setup.cluster, setup.hazard_per_s, seed)


def _check_references(file: YamlFile, content: ClusterFile) -> None:
    """Refuse names of types that are not there, and clusters too large to be meant."""
    known, gpus = content.node_types, 0
    errors, unknown = list[InputError](), list[tuple[Place, str]]()
    if content.reference_type is not None and content.reference_type not in known:
        fix = name_advice(content.reference_type, known)
        errors.append(file.error(("reference_type",), f"{shortened(content.reference_type)} is not a node type", fix))
    for i, rack in enumerate(content.racks):
        for j, group in enumerate(rack.nodes):
            if group.type in known:
                gpus += rack.count * group.count * known[group.type].gpus
            else:
                unknown.append((("racks", i, "nodes", j, "type"), group.type))
    for place, name in unknown[:MAX_REPORTED]:
        errors.append(file.error(place, f"{shortened(name)} is not a node type", name_advice(name, known)))
    errors += omitted_problems(file.path, unknown)
    if gpus > MAX_GPUS:
        fix = f"write counts that give at most {MAX_GPUS}"
        errors.append(file.error(("racks",), f"the cluster has {gpus} GPUs", fix))
    raise_all(errors)


def _check_speeds(file: YamlFile, content: ClusterFile, reference: NodeType) -> None:
    """Refuse types whose speed, where it follows from peak_flops, is too far from that of the reference type."""
    speeds = {name: _speed_of_type(node_type, reference) for name, node_type in content.node_types.items()}
    wrong = [name for name, speed in speeds.items() if not LEAST_SPEED <= speed <= MOST_SPEED]
    fix = f"correct peak_flops, or set speed, from {LEAST_SPEED:g} to {MOST_SPEED:g}"
    errors = [
        file.error(
            ("node_types", name, "peak_flops"),
            f"{shortened(name)} is {speeds[name]:g} times as fast as the reference type",
            fix,
        )
        for name in wrong[:MAX_REPORTED]
    ]
    raise_all([*errors, *omitted_problems(file.path, wrong)])


def _node_hazards_per_s(content: ClusterFile, racks: list[Rack]) -> NDArray[np.float64]:
    """Return the fault rate of one GPU of each node, shape (nodes,)."""
    of_type = {name: node_type.hazard_per_s for name, node_type in content.node_types.items()}
    groups = [group for rack in racks for group in rack.nodes]
    hazards = [of_type[group.type] if group.hazard_per_s is None else group.hazard_per_s for group in groups]
    return np.repeat(np.array(hazards, dtype=np.float64), [group.count for group in groups])


def _cluster_of_file(content: ClusterFile, racks: list[Rack], reference: NodeType) -> Cluster:
    index = {name: i for i, name in enumerate(content.node_types)}
    of_node = [group.type for rack in racks for group in rack.nodes for _ in range(group.count)]
    node_type = np.array([index[name] for name in of_node], dtype=np.int32)
    types = list(content.node_types.values())

    def of_nodes(values: list[float]) -> NDArray[np.float64]:
        return np.array(values, dtype=np.float64)[node_type]

    node_gpus = np.array([kind.gpus for kind in types], dtype=np.int32)[node_type]
    rack_nodes = [sum(group.count for group in rack.nodes) for rack in racks]
    return Cluster(
        gpu_node=np.repeat(np.arange(node_type.size, dtype=np.int32), node_gpus),
        first_gpu=np.append(0, np.cumsum(node_gpus)).astype(np.int32),
        node_rack=np.repeat(np.arange(len(racks), dtype=np.int32), rack_nodes),
        first_node=np.append(0, np.cumsum(rack_nodes)).astype(np.int32),
        node_type=node_type,
        speed=of_nodes([_speed_of_type(kind, reference) for kind in types]),
        peak_flops=of_nodes([kind.peak_flops for kind in types]),
        memory_bytes=of_nodes([kind.memory_bytes for kind in types]),
        intra_bytes_per_s=of_nodes([kind.intra_bytes_per_s for kind in types]),
        nic_bytes_per_s=of_nodes([kind.nic_bytes_per_s for kind in types]),
        uplink_bytes_per_s=np.array([rack.uplink_bytes_per_s for rack in racks], dtype=np.float64),
        suits=np.ones((1, node_type.size), dtype=np.int32),
    )


def _speed_of_type(node_type: NodeType, reference: NodeType) -> float:
    return node_type.peak_flops / reference.peak_flops if node_type.speed is None else node_type.speed


def _rules_of_file(content: ClusterFile, reference: NodeType) -> Rules:
    return Rules(
        ring=content.run_time.model == "ring",
        node_penalty=content.run_time.node_penalty or 0.0,
        reference_gpus=reference.gpus,
        reference_intra_bytes_per_s=reference.intra_bytes_per_s,
        reference_nic_bytes_per_s=reference.nic_bytes_per_s,
        checkpoint_s=content.checkpoint_s,
        restart_s=content.restart_s,
        order=ORDERS["fifo"],
        ageing_s=float("inf"),
        waiting=False,
    )


def _with_fault_handling(rules: Rules, faults: FaultConfiguration) -> Rules:
    """Return rules with what follows a fault, and with nodes that become slow."""
    if faults.slow is not None:
        slow = faults.slow
        rules = rules._replace(slow_per_s=slow.a_node_day / DAY_S, slow_factor=slow.factor, slow_mean_s=slow.lasts_s)
    return rules._replace(
        switching=faults.handling == "switch", detection_s=faults.detection_s, preflight_s=faults.preflight_s,
        switch_s=faults.switch_s, spares=faults.spares, replacement=FORMULAS[faults.replacement],
        backups=faults.backups,
    )  # fmt: skip


def _node_names(file: YamlFile, content: ClusterFile) -> tuple[str, ...]:
    """Return the names of the nodes; one without its own is called after its rack and its place there."""
    names: dict[str, None] = {}
    racks = [(place, rack) for place, rack in enumerate(content.racks) for _ in range(rack.count)]
    for number, (place, rack) in enumerate(racks):
        own = [group.name for group in rack.nodes for _ in range(group.count)]
        for i, name in enumerate(own):
            chosen = name or f"rack{number}-node{i}"
            if chosen in names:
                problem = f"two nodes are called {shortened(chosen)}"
                raise file.error(("racks", place), problem, "give each another name")
            names[chosen] = None
    return tuple(names)


def _fault_configuration(file: YamlFile, section: dict[str, object]) -> FaultConfiguration:
    """Return the `faults` section as the configuration of its model."""
    if "model" not in section:
        raise file.error(("faults", "model"), "is missing", f"add it; known: {', '.join(FAULT_MODELS)}")
    name = section["model"]
    if not isinstance(name, str) or name not in FAULT_MODELS:
        fix = name_advice(str(name), FAULT_MODELS)
        raise file.error(("faults", "model"), f"{shortened(name)} is not a fault model", fix)
    return validated(file, FAULT_MODELS[name], section, ("faults",))
