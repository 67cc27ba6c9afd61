"""A member forked from a warm process ends as its script does under Python: with one status, output and files."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from longshore.ring.warm import connect_to_warm_process, fork_member
from tests.support import processes

WAIT_S = 60.0
ENDS = {
    "threads": """
        import threading, time
        def upload():
            time.sleep(0.2)
            open("uploaded", "w").write("all")
            threading.Thread(target=lambda: open("and-more", "w").write("all")).start()
        threading.Thread(target=upload).start()
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    """,
    "atexit": """
        import atexit
        atexit.register(lambda: open("last", "w").write("all"))
        atexit.register(print, "second")
        atexit.register(print, "first")
        print("script")
    """,
    "atexit fails": """
        import atexit
        atexit.register(print, "goes on")
        atexit.register(int, "made up")
        atexit.register(print, "first")
    """,
    "executor": """
        import time
        from concurrent.futures import ThreadPoolExecutor
        def save(name):
            time.sleep(0.1)
            open(name, "w").write("all")
        pool = ThreadPoolExecutor(1)
        for name in "abc":
            pool.submit(save, name)
    """,
    "own registry": """
        import threading
        threading._register_atexit(print, "before threads are waited for")
        print("script")
    """,
    "processes": """
        import multiprocessing as mp, time
        from multiprocessing import util
        util.Finalize(None, print, args=("finalized",), exitpriority=10)
        def work(name):
            time.sleep(0.1)
            open(name, "w").write("all")
        if __name__ == "__main__":
            mp.get_context("fork").Process(target=work, args=("forked",)).start()
            mp.get_context("spawn").Process(target=work, args=("spawned",)).start()
            daemon = mp.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
            daemon.start()
    """,
    "main afterwards": """
        import pickle, sys, threading, time
        class Mine: pass
        def late():
            threading.main_thread().join()
            print(type(pickle.loads(pickle.dumps(Mine()))) is Mine, sys.modules["__main__"].__file__ == __file__)
        threading.Thread(target=late).start()
        sys.exit()
    """,
    "left open": """
        import logging, logging.handlers, sys, tempfile, weakref
        kept = open("kept", "w")
        kept.write("never flushed by the script")
        folder = tempfile.TemporaryDirectory(dir=".")
        class It:
            def __del__(self): print("deleted")
        it, other = It(), It.__class__
        weakref.finalize(it, print, "finalized")
        to = logging.handlers.MemoryHandler(99, target=logging.FileHandler("log"))
        logging.getLogger().addHandler(to)
        logging.warning("last words")
        sys.stdout.write("no line end")
    """,
    "raises": """
        import atexit
        atexit.register(print, "atexit")
        def inner():
            try:
                int("x")
            except ValueError as error:
                raise KeyError("made up") from error
        inner()
    """,
    "own hook": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, error, trace.tb_lineno, trace.tb_next)
        raise LookupError("made up")
    """,
    "no Python": "this is no Python",
    "interrupted": "import atexit\natexit.register(print, 'atexit')\nraise KeyboardInterrupt",
    "at once": "import atexit, os\natexit.register(print, 'never')\nprint('never')\nos._exit(7)",
    "killed": "import os\nos.kill(os.getpid(), 9)",
    "exit in atexit": "import atexit, sys\natexit.register(sys.exit, 5)",
    "exit in a thread": "import sys, threading\nthreading.Thread(target=sys.exit, args=(5,)).start()",
    "error in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='it').start()",
    "closed output": "import sys\nsys.stdout.close()",
    "broken output": "import os\nprint('x' * 10)\nos.close(1)",
    "arguments": "import sys\nprint(sys.argv, __name__, __doc__, __spec__, sys.path[0], __file__)",
    **{
        f"exit {code}": f"import atexit, sys\natexit.register(print, 'atexit')\nsys.exit({code})"
        for code in ("", "None", "0", "3", "-1", "261", "True", "'words'", "[1]", "2.5")
    },
}


class Ended(NamedTuple):
    status: int
    output: str
    files: dict[str, str]


def ended(folder: Path, status: int) -> Ended:
    output = folder / "output"
    text = output.read_text()
    output.unlink()
    files = {it.name: it.read_text() for it in folder.iterdir() if it.is_file()}
    return Ended(status, text, files)


def by_python(folder: Path, arguments: Sequence[str]) -> Ended:
    with (folder / "output").open("w") as output:
        line = [sys.executable, *arguments]
        done = processes.run(line, cwd=folder, stdout=output, stderr=output, timeout_s=WAIT_S, check=False)
    return ended(folder, done.returncode)


def by_fork(folder: Path, arguments: Sequence[str], warm: Path) -> Ended:
    async def run() -> int:
        connection = await connect_to_warm_process(warm, lambda: False)
        assert connection is not None
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        what = {"arguments": list(arguments), "environment": dict(os.environ), "folder": str(folder)}
        forked = await fork_member(connection, what, output)
        os.close(output)
        assert forked is not None
        return await asyncio.wait_for(forked[1], WAIT_S)

    return ended(folder, asyncio.run(run()))


def both(tmp_path: Path, warm: Path, arguments: Sequence[str]) -> tuple[Ended, Ended]:
    """Return how a script ends by Python and by a fork, each in an empty folder."""
    one, other = tmp_path / "own", tmp_path / "one"
    for folder in (one, other):
        folder.mkdir(parents=True)
    return by_python(one, arguments), by_fork(other, arguments, warm)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ENDS)
def test_a_forked_script_ends_as_python_does(name: str, warm: Path, tmp_path: Path) -> None:
    script = tmp_path / "a script.py"
    text = ENDS[name]
    script.write_text("\n".join(line.removeprefix(" " * 8) for line in text.splitlines()) + "\n")
    expected, found = both(tmp_path, warm, [str(script), "an argument"])
    assert found == expected


@pytest.mark.full
def test_a_module_and_a_folder_are_run_as_python_does(warm: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    text = "import sys\nprint(__name__, __package__, sys.argv, __file__)\nraise SystemExit(4)"
    (package / "__main__.py").write_text(text)
    for arguments in (["-m", "json.tool", "/dev/null"], ["-m", "no.such.module"], [str(package), "x"], ["no-such.py"]):
        expected, found = both(tmp_path / arguments[-1].strip("/").replace("/", "-"), warm, arguments)
        assert (found.status, found.files) == (expected.status, expected.files)
        assert found.output.replace("one/", "own/") == expected.output or "json.tool" in arguments
