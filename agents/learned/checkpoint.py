"""Saving and loading policies: a zip of a schema (JSON) and weights (NumPy arrays); nothing in it is executed."""

import io
import json
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError

from ...cluster.files.errors import CheckpointError
from ...cluster.files.input_problems import MAX_REPORTED, input_problems
from ...cluster.files.output_file import in_one_line, replacing_file
from ...cluster.files.plugins import registered
from ...cluster.model.outcome import Objective
from .archive import (
    MAX_FILE_BYTES,
    Shapes,
    array_shape_in,
    arrays_in,
    max_unpacked_bytes,
    open_archive,
    read_entry,
    read_file,
)
from .network import LearnedPolicy, Network, ObservationLayout, find_network
from .schema import (
    MAX_SCHEMA_BYTES,
    MAX_UNITS,
    SCHEMA,
    UNREADABLE,
    WEIGHTS,
    Schema,
    TrainedUnder,
    check_features,
    feature_names,
    item_count,
)

MAX_SCHEMA_KEYS, MAX_SCHEMA_KEY_CHARS = 100, 100  # of a schema, and letters of each
MAX_ERROR_CHARS = 1000  # of a message about a damaged file
SB3_VERSION_ENTRY = b"_stable_baselines3_version"  # an entry of the files of Stable-Baselines3


def schema_of(
    *, algorithm: str, network: str, action: str, observation: str, waiting: bool, node_gpus: tuple[int, ...],
    time_to_go: Objective | None = None, trained: TrainedUnder | None = None,
) -> Schema:  # fmt: skip
    """Return the schema of a network for a cluster with `node_gpus` GPUs on each node.

    `time_to_go` is the objective whose remaining cost its value predicts, None if it predicts something else;
    `trained` are the conditions of its training, None if they are unknown.
    """
    names = feature_names(action, observation)
    return Schema.model_validate(
        {
            "longshore": version("longshore"), "algorithm": algorithm, "network": network, "action": action,
            "observation": observation, "waiting": waiting, "globals": names[0], "features": names[1],
            "items": item_count(action, observation, node_gpus), "gpus": sum(node_gpus), "node_gpus": node_gpus,
            "time_to_go": time_to_go, "trained": trained,
        }
    )  # fmt: skip


def untrained_network(schema: Schema) -> Network:
    """Return an untrained network for a schema, its parameters random (SPEC R1).

    Raises:
        PluginError: If its network is not registered, or is none.
    """
    return find_network(schema.network).made_for(schema, layout_of(schema))


def layout_of(schema: Schema) -> ObservationLayout:
    """Return how a network reads the observations of a schema."""
    nodes, candidate = len(schema.node_gpus), schema.action == "candidate"
    actions = schema.items if candidate else nodes if schema.action == "node" else schema.gpus
    # Waiting is one of the candidates of `candidate`, and else an action of its own.
    return ObservationLayout(
        len(schema.globals), schema.items, len(schema.features), actions, schema.waiting and not candidate
    )


def save_policy(path: Path, schema: Schema, network: Network) -> None:
    """Write a checkpoint; the same policy gives the same bytes. An existing file is replaced at once or not at all."""
    weights = io.BytesIO()
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}
    np.savez(weights, allow_pickle=False, **arrays)
    with replacing_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ((SCHEMA, schema.model_dump_json(indent=1).encode()), (WEIGHTS, weights.getvalue())):
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def load_policy(path: Path) -> LearnedPolicy:
    """Return the policy of a checkpoint, named after the file.

    Raises:
        CheckpointError: If the file is missing or damaged, or does not fit this version or the installed networks.
        PluginError: If its network is installed, and is none or cannot be imported.
    """
    try:
        schema, network, arrays = _read_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError(in_one_line(str(error))[:MAX_ERROR_CHARS]) from error
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such checkpoint") from error
    except UNREADABLE as error:
        raise CheckpointError(
            in_one_line(f"{path} is no checkpoint or is damaged: {error}")[:MAX_ERROR_CHARS]
        ) from error
    network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return policy_of(in_one_line(path.stem), schema, network)


def policy_of(name: str, schema: Schema, network: Network) -> LearnedPolicy:
    """Return a network under the policy protocol, by its compiled pass if it has one."""
    return network.compiled(name, schema) or LearnedPolicy(name, schema, network)


def _read_checkpoint(path: Path) -> tuple[Schema, Network, dict[str, np.ndarray]]:
    """Return the schema of a checkpoint, a network for it and its weights; sizes are checked first."""
    file = read_file(path)
    if SB3_VERSION_ENTRY in file[-4096:]:
        raise CheckpointError(
            f"{path} is a model of Stable-Baselines3; make a policy of it with `longshore policy import {path}`"
        )
    with open_archive(file, (SCHEMA, WEIGHTS), packed=True) as archive:
        schema = _parse_schema(path, read_entry(archive, SCHEMA, MAX_SCHEMA_BYTES))
        check_features(schema, str(path))
        kind = _network_class(path, schema)
        expected = _weight_shapes(kind, schema)
        most_bytes = MAX_FILE_BYTES if kind.sized_by else min(max_unpacked_bytes(expected), MAX_FILE_BYTES)
        content = read_entry(archive, WEIGHTS, most_bytes)
    with open_archive(content, tuple(f"{name}.npy" for name in expected), packed=False) as weights:
        width = (_network_width(weights, kind.sized_by),) if kind.sized_by else ()
        arrays = arrays_in(weights, _weight_shapes(kind, schema, *width))
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise CheckpointError(f"{path}: some weights are not finite; train it again")
    return schema, kind.made_for(schema, layout_of(schema), *width), arrays


def _network_class(path: Path, schema: Schema) -> type[Network]:
    """Return the network that a schema names."""
    known = registered("networks")
    if schema.network not in known:
        raise CheckpointError(
            f"{path}: there is no network {schema.network!r}, only {', '.join(known)}; install the package that "
            "registers it under longshore.networks"
        )
    kind = find_network(schema.network)
    if schema.action not in kind.actions:
        raise CheckpointError(
            f"{path}: the network {schema.network!r} has no {schema.action} actions, only {', '.join(kind.actions)}; "
            "it was made by another version"
        )
    return kind


def _network_width(weights: zipfile.ZipFile, name: str) -> int:
    """Return of which width a network was trained, by one of its weights."""
    shape = array_shape_in(weights, name)
    if not shape or not 0 < shape[-1] <= MAX_UNITS:
        raise ValueError(f"weight {name} has shape {shape}, expected 1 to {MAX_UNITS} units")
    return shape[-1]


def _weight_shapes(kind: type[Network], schema: Schema, *width: int) -> Shapes:
    """Return the shape of each weight of a network, which takes no memory."""
    with torch.device("meta"):
        network = kind.made_for(schema, layout_of(schema), *width)
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def _parse_schema(path: Path, text: bytes) -> Schema:
    try:
        content = json.loads(text)
        if isinstance(content, dict) and (
            len(content) > MAX_SCHEMA_KEYS or max(map(len, content), default=0) > MAX_SCHEMA_KEY_CHARS
        ):
            raise CheckpointError(f"{path}: {SCHEMA} has too many keys or too long ones; it is no schema")
        return Schema.model_validate(content)
    except RecursionError as error:
        raise CheckpointError(f"{path}: {SCHEMA} is nested too deeply") from error
    except ValidationError as error:
        first = input_problems(error.errors(include_url=False)[:MAX_REPORTED], Schema.model_json_schema(), content)[0]
        place = ".".join(map(str, (SCHEMA, *first.place)))
        raise CheckpointError(f"{path}: {place}: {first.problem}; it was made by another version") from error
