"""Which files of the product a story enters: a copy of the sources in which every function notes its file first.

A note is a line in one file, so that every process counts: those that start without an environment, and those that end
without a word. Kernels run as plain Python, and count too.
"""

import ast
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
OWN_TEXT = ("_branch", "_leaf")  # functions that are compiled from their own text, apart from their module
# Each thread notes a file once. Before the story begins nothing is noted, so that a start does not count.
NOTE = """
def _note_entry(_seen=set()):
    import threading
    thread = threading.get_ident()
    if thread in _seen:
        return
    import os
    if not os.path.exists({begun!r}):
        return
    _seen.add(thread)
    file = os.open({target!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, f"{{os.getpid()}}\\t{{threading.current_thread().name}}\\t{name}\\n".encode())
    os.close(file)
"""


class Entry(NamedTuple):
    """A file that a thread of a process has entered."""

    process: int
    thread: str
    file: str  # from the root of the checkout


class Tracked:
    """A copy of the product that notes which files are entered.

    Args:
        place: An empty folder.
    """

    def __init__(self, place: Path) -> None:
        self._begun, self._target = place / "begun", place / "entered"
        copy = place / "copy"
        names = ["src", "pyproject.toml", *(it.name for it in sorted(ROOT.iterdir()) if (it / "__init__.py").exists())]
        names += ["checkpoints"]
        for name in names:
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, copy / name)
        self.sources = copy / "src"  # for PYTHONPATH
        for path in copy.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            path.write_text(self._noting(text, str(path.relative_to(copy))), encoding="utf-8")

    def environment(self) -> dict[str, str]:
        """Return what a process needs to run the copy."""
        return {"PYTHONPATH": str(self.sources), "NUMBA_DISABLE_JIT": "1"}

    @contextmanager
    def story(self) -> Iterator[list[Entry]]:
        """Note what is entered meanwhile; yield a list that has it afterwards.

        A process is part of one story only, as it notes each file once.
        """
        entries: list[Entry] = []
        self._target.unlink(missing_ok=True)
        self._begun.touch()
        try:
            yield entries
        finally:
            self._begun.unlink()
            for line in self._target.read_text(encoding="utf-8").splitlines() if self._target.exists() else ():
                process, thread, file = line.split("\t")
                entries.append(Entry(int(process), thread, file))

    def _noting(self, text: str, name: str) -> str:
        """Return a module that notes its name when one of its functions is entered."""
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in OWN_TEXT:
                at = 1 if ast.get_docstring(node) is not None else 0
                node.body.insert(at, ast.Expr(ast.Call(ast.Name("_note_entry", ast.Load()), [], [])))
        at = 1 if ast.get_docstring(tree) is not None else 0
        while at < len(tree.body) and ast.unparse(tree.body[at]).startswith("from __future__"):
            at += 1
        note = NOTE.format(target=str(self._target), begun=str(self._begun), name=name)
        tree.body[at:at] = ast.parse(note).body
        return ast.unparse(ast.fix_missing_locations(tree))
