"""A process that writes its number to a folder, and waits.

If a status is named, the last rank ends with it. With `hard` all ranks end at once with status 0, as no module does.
"""

import os
import sys
import time
from pathlib import Path

rank = os.environ["RANK"]
(Path(sys.argv[1]) / f"{rank}.tmp").write_text(str(os.getpid()))
(Path(sys.argv[1]) / f"{rank}.tmp").rename(Path(sys.argv[1]) / rank)
if sys.argv[2:] == ["hard"]:
    os._exit(0)
if len(sys.argv) > 2 and int(rank) == int(os.environ["WORLD_SIZE"]) - 1:
    sys.stderr.write("KeyError: 'what went wrong'\n")
    raise SystemExit(int(sys.argv[2]))
time.sleep(600)
