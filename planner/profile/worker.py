"""The process in which a user's model is built and profiled: `python -m longshore.planner.profile.worker`.

It reads a request, one line of JSON, from standard input, and writes the reply to the descriptor that the request
names. What the user's code prints goes to standard error.
"""

import contextlib
import json
import os
import resource
import sys
from typing import Any

from ...cluster.files.processes import limit_resource


def main() -> None:
    """Profile the model of the request, within limits, and reply."""
    request = json.loads(sys.stdin.readline())
    answer = int(request["answer"])
    os.set_inheritable(answer, False)  # noqa: FBT003  # its own signature
    os.dup2(2, 1)
    # Limit data, not address space: torch reserves more address space than it uses.
    limit_resource(resource.RLIMIT_DATA, int(request["memory_bytes"]))
    limit_resource(resource.RLIMIT_CORE, 0)
    # Processes that the user's code starts inherit it, so that none spins for ever without a parent.
    limit_resource(resource.RLIMIT_CPU, int(request["cpu_s"]))
    found = _profile_or_problem(request["path"], request["function"])
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        out.write(json.dumps(found) + "\n")
        out.flush()
    os._exit(0)  # threads and exit handlers of the user's code must not run


def _profile_or_problem(path: str, function: str) -> dict[str, Any]:
    """Return the profile, or the problem."""
    import torch
    import torch.utils.checkpoint
    from torch.utils.flop_counter import flop_registry

    from .building import BuildError, load_build_and_hints, user_line
    from .rungs import OUT_OF_MEMORY, call_without_checkpointing, profile_by_rungs

    torch.utils.checkpoint.checkpoint = call_without_checkpointing
    known = len(flop_registry)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            build, hints = load_build_and_hints(path, function)
            found = profile_by_rungs(build, hints, len(flop_registry) - known)
    except BuildError as error:
        return {"problem": str(error)}
    except SystemExit as error:
        return {"problem": f"the file ended the process with status {error.code}; let it only define {function}"}
    except MemoryError:
        return {"problem": f"{OUT_OF_MEMORY}; raise --memory-limit"}
    except BaseException as error:  # a user's file may raise anything
        text = " ".join(str(error).split())[:300]
        at = user_line(error)
        where = f" ({at})" if at else ""
        return {"problem": f"it raised {type(error).__name__}: {text}{where}; run `python {path}` for details"}
    return {**found._asdict(), "layers": [layer.model_dump() for layer in found.layers]}


if __name__ == "__main__":
    main()
