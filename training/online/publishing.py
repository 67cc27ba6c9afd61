"""How a new checkpoint takes the place of the one that a scheduler serves: at once and whole, or not at all."""

import os
import shutil
from hashlib import sha256
from pathlib import Path

from ...cluster.files.errors import CheckpointError, InputError
from ...cluster.files.output_file import replacing


def digest_of(path: Path) -> str:
    """Return what tells one version of a checkpoint from another, as the scheduler shows it.

    Raises:
        CheckpointError: If the file cannot be read.
    """
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def publish(new: Path, served: Path) -> None:
    """Put a checkpoint in the place of another one. Whoever reads finds the old one or the new one, whole.

    That is so also where this process or the machine dies in between.

    Raises:
        InputError: If nothing can be written there; the old one is still served.
    """
    place = served.resolve()  # a link stays one
    try:
        with replacing(place) as part:
            shutil.copyfile(new, part)
            shutil.copymode(place, part)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise InputError(f"cannot be published: {error.strerror}", "make its folder writable", path=served) from error
