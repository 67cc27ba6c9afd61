"""Names of Unix sockets.

Standard library only: those that start a ring import this module.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Give a name by which a socket can be bound and reached while this is open, however long its path is.

    The kernel takes no name of more than 107 bytes.

    Raises:
        OSError: If its folder is not there.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
