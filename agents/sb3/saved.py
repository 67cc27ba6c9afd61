"""Reading what Stable-Baselines3 has saved, which may be hostile: of what is pickled in it nothing is unpickled."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import CheckpointError
from ..learned.archive import read_file, stored_entries
from .tensors import weights_in

DATA, WEIGHTS = "data", "policy.pth"
MOST_ENTRIES = 16
MOST_TEXT = 1000  # letters of what is compared
MOST_DATA_BYTES = 1 << 26  # it holds the last observations of all environments, in base64

Weights = Mapping[str, NDArray[np.float32]]


class Saved(NamedTuple):
    """What a model was saved with, as far as it is plain text and numbers."""

    data: Mapping[str, Any]
    weights: Weights

    def text(self, *names: str) -> str:
        """Return what stands under a name of the data, and below it, as text in one line; "" if nothing does."""
        found: Any = self.data
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        return "" if found is None else " ".join(str(found)[:MOST_TEXT].split())


def read_saved(path: Path) -> Saved:
    """Return what a file holds that `save` of a model of Stable-Baselines3 wrote.

    Raises:
        CheckpointError: If it is missing, damaged or no such file, in one line.
    """
    try:
        entries = stored_entries(read_file(path), MOST_ENTRIES)
        if not {DATA, WEIGHTS} <= entries.keys():
            raise CheckpointError(f"{path} is no model of Stable-Baselines3: it has no {DATA} and {WEIGHTS}")
        if len(entries[DATA]) > MOST_DATA_BYTES:
            raise ValueError(f"{DATA} has {len(entries[DATA])} bytes, expected at most {MOST_DATA_BYTES}")
        data = json.loads(entries[DATA])
        if not isinstance(data, dict):
            raise ValueError(f"{DATA} is no object of JSON")
        weights = weights_in(entries[WEIGHTS])
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile, EOFError, RuntimeError) as error:
        message = " ".join(str(error).split())[:500]
        raise CheckpointError(f"{path} is no model of Stable-Baselines3 or is damaged: {message}") from error
    if not all(np.isfinite(array).all() for array in weights.values()):
        raise CheckpointError(f"{path}: some weights are not finite; train it again")
    return Saved(data, weights)
