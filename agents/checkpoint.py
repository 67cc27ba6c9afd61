"""Saving and loading policies: a zip of a schema (JSON) and weights (NumPy arrays); nothing in it is executed."""

import io
import json
import zipfile
import zlib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError

from ..cluster.errors import CheckpointError
from ..cluster.input_problems import input_problems
from .learned import LearnedPolicy
from .moves_policy import MovesPolicy
from .networks import NETWORKS, Layout, MovesNetwork, Network
from .schema import Goal, Schema, check_features, feature_names, item_count

SCHEMA, WEIGHTS = "schema.json", "weights.npz"
LARGEST_BYTES = 1 << 30  # more than any policy of ours needs; a bomb needs more
MOST_UNITS = 4096  # of a layer


def schema_of(
    *, algorithm: str, network: str, action: str, observation: str, waiting: bool, node_gpus: tuple[int, ...],
    time_to_go: Goal | None = None,
) -> Schema:  # fmt: skip
    """Return the schema of a network for a cluster whose nodes have so many GPUs.

    `time_to_go` is the goal of which its value tells what is still to come, None if it tells something else.
    """
    names = feature_names(action, observation)
    return Schema.model_validate(
        {
            "longshore": version("longshore"), "algorithm": algorithm, "network": network, "action": action,
            "observation": observation, "waiting": waiting, "globals": names[0], "features": names[1],
            "items": item_count(action, observation, node_gpus), "gpus": sum(node_gpus), "node_gpus": node_gpus,
            "time_to_go": time_to_go,
        }
    )  # fmt: skip


def network_of(schema: Schema) -> Network:
    """Return an untrained network for a schema, its parameters random (SPEC R1)."""
    return NETWORKS[schema.network](layout_of(schema))


def layout_of(schema: Schema) -> Layout:
    """Return how a network reads the observations of a schema."""
    nodes, candidate = len(schema.node_gpus), schema.action == "candidate"
    actions = schema.items if candidate else nodes if schema.action == "node" else schema.gpus
    # Waiting is one of the moves of `candidate`, and else an action of its own.
    return Layout(len(schema.globals), schema.items, len(schema.features), actions, schema.waiting and not candidate)


def save_policy(path: Path, schema: Schema, network: Network) -> None:
    """Write a checkpoint; the same policy gives the same bytes. An existing file is replaced at once or not at all."""
    weights = io.BytesIO()
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}
    np.savez(weights, allow_pickle=False, **arrays)
    part = path.with_name(path.name + ".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ((SCHEMA, schema.model_dump_json(indent=1).encode()), (WEIGHTS, weights.getvalue())):
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    part.replace(path)


def load_policy(path: Path) -> LearnedPolicy:
    """Return the policy of a checkpoint, named after the file.

    Raises:
        CheckpointError: If the file is missing or damaged, or does not fit this version.
    """
    schema, arrays = _read(path)
    check_features(schema, str(path))
    network = network_of(schema)
    if isinstance(network, MovesNetwork) and 0 < (width := arrays.get("score.weight", np.zeros(0)).size) <= MOST_UNITS:
        network = MovesNetwork(layout_of(schema), width)  # of whatever width it was trained
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: array.shape for name, array in arrays.items()}
    if found != expected:
        odd = next(name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name))
        raise CheckpointError(
            f"{path}: weight {odd} has shape {found.get(odd)}, its schema needs {expected.get(odd)}; train it again"
        )
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise CheckpointError(f"{path}: some weights are not finite; train it again")
    network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return policy_of(path.stem, schema, network)


def policy_of(name: str, schema: Schema, network: Network) -> LearnedPolicy:
    """Return a network under the policy protocol."""
    if isinstance(network, MovesNetwork):
        return MovesPolicy(name, schema, network)
    return LearnedPolicy(name, schema, network)


def _read(path: Path) -> tuple[Schema, dict[str, np.ndarray]]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_BYTES:
                raise CheckpointError(f"{path} unpacks to more than {LARGEST_BYTES} bytes; it is no policy")
            text, content = archive.read(SCHEMA), archive.read(WEIGHTS)
        schema = Schema.model_validate(json.loads(text))
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return schema, {name: np.asarray(arrays[name], dtype=np.float32) for name in arrays.files}
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such checkpoint") from error
    except ValidationError as error:
        first = input_problems(error.errors(include_url=False), Schema.model_json_schema(), json.loads(text))[0]
        place = ".".join(map(str, (SCHEMA, *first.place)))
        raise CheckpointError(f"{path}: {place}: {first.problem}; it was made by another version") from error
    except (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        ValueError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise CheckpointError(f"{path} is no checkpoint or is damaged: {error}") from error
