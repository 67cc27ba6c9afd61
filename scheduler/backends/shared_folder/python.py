"""How this package's programs are started on a node. The nodes use it too: standard library only."""

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).absolute().parents[4]  # the folder that holds the package
_RUN = (
    "import importlib, os, sys; sys.path += sys.argv[1].split(os.pathsep); "
    "call = getattr(importlib.import_module('longshore.scheduler.backends.' + sys.argv[2]), sys.argv[3]); "
    "os._exit(call(*sys.argv[4:]))"
)


def python_line(module: str, function: str, *arguments: str, packages: str = "") -> list[str]:
    """Return the command that calls a function of this package and exits with what it returns.

    Python and this package must be found on the node under the same paths as here.

    Args:
        module: Of the package of all backends, such as `slurm.node`.
        function: Takes texts and returns an exit code.
        arguments: For it.
        packages: Folder of packages that it needs beside the standard library.
    """
    path = os.pathsep.join([str(_ROOT), *([packages] if packages else [])])
    # -I -S: nothing of the user's settings or site packages, which also makes it start fast.
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _RUN, path, module, function, *arguments]
