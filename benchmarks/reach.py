"""Which tests reach a line: recorded by coverage.py, and by the calls of kernels, whose lines it cannot see."""

import ast
import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

CONFIGURATION = """\
[run]
branch = False
parallel = True
sigterm = True
patch = _exit, fork
context = ${{PYTEST_CURRENT_TEST-}}
data_file = {folder}/data/coverage
source = {sources}
"""
SOURCES = ("agents", "cluster", "envs", "eval", "planner", "preflight", "ring", "scheduler", "src", "tests", "training")
STEP_TIMEOUT_S = 7200.0
COMPILED = ("agents/", "cluster/", "envs/")  # the rooms with kernels
COMPILING, NUMBA = "cluster/kernels/", r"^(?:from|import) (?:numba|llvmlite)"
OURS = ("mutation.py", "reach.py", "code_faults.py")


class Reach(NamedTuple):
    """The content of a recording.

    Args:
        lines: The tests that run each line, by the path of its file from the root.
        times_s: How long each test takes.
    """

    lines: Mapping[str, Mapping[int, frozenset[str]]]
    times_s: Mapping[str, float]

    def tests_of(self, root: Path, path: str, line: int) -> list[str]:
        """Return the tests that reach a line: those of its room first, and of each room the quickest."""
        own = self.lines.get(path, {})
        found = set(own.get(line, ()))
        if is_outside_functions(root, path, line):  # it runs at the import, and shows where the module is used
            found.update(*own.values())
        for caller_path, first, last in callers_of(root, path, line):
            lines = self.lines.get(caller_path, {})
            found.update(test for at in range(first, last + 1) for test in lines.get(at, ()))
        room = f"tests/{path.partition('/')[0]}/"
        return sorted((it for it in found if it in self.times_s), key=lambda it: (room not in it, self.times_s[it]))


def record(root: Path, folder: Path, arguments: Sequence[str]) -> None:
    """Run the tests of a checkout with coverage.py, and keep what they reach in a folder.

    Args:
        root: Of the checkout.
        folder: Where `read` finds it.
        arguments: Of pytest.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)
    tool = folder / "tool"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    if not tool.exists():
        subprocess.run([*pip, "-c", root / "constraints.txt", "--target", tool, "coverage"], check=True, timeout=600)
    sources = "\n  ".join(str((root / room).absolute()) for room in SOURCES)
    configuration = folder / "coverage.ini"
    configuration.write_text(CONFIGURATION.format(folder=folder.absolute(), sources=sources), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(tool.absolute()), str(root / "src"))),
        "COVERAGE_PROCESS_START": str(configuration.absolute()),
        "LONGSHORE_REACH": str(folder.absolute()),
        "OMP_NUM_THREADS": "1",
    }
    line = [sys.executable, "-m", "pytest", "-p", "tests.reach_recorder", *arguments]
    with _started_everywhere(tool):
        subprocess.run(line, cwd=root, env=environment, check=False, timeout=STEP_TIMEOUT_S)
    remove_damaged(folder / "data")
    coverage = [sys.executable, "-m", "coverage"]
    combine: list[str | Path] = [*coverage, "combine", "--keep", "--rcfile", configuration, folder / "data"]
    subprocess.run(combine, cwd=root, env=environment, check=True, timeout=STEP_TIMEOUT_S)


def remove_damaged(folder: Path) -> list[str]:
    """Remove the data that cannot be read, as one such file would fail the whole recording; return their names.

    They come from processes that tests kill, or for which a test has made the disk small.
    """
    damaged = []
    for path in sorted(folder.iterdir()):
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            state = str(error)
        if state != "ok":
            damaged.append(path.name)
            path.unlink()
    return damaged


@contextmanager
def _started_everywhere(tool: Path) -> Iterator[None]:
    """Let each Python process of this environment load coverage.py, for as long as the recording takes."""
    hook = Path(sysconfig.get_path("purelib")) / "a1_coverage.pth"
    shutil.copyfile(tool / hook.name, hook)
    try:
        yield
    finally:
        hook.unlink()


def read(root: Path, folder: Path) -> Reach:
    """Return what `record` has kept."""
    sys.path.append(str(folder / "tool"))
    from coverage import CoverageData  # installed by the recording alone

    data: Any = CoverageData(str(folder / "data" / "coverage"))
    data.read()
    times_s: dict[str, float] = {}
    for path in folder.glob("times-*.jsonl"):
        times_s.update(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
    lines: dict[str, Mapping[int, frozenset[str]]] = {}
    for measured in data.measured_files():
        contexts = data.contexts_by_lineno(measured)
        name = str(Path(measured).resolve().relative_to(root.resolve()))
        lines[name] = {at: frozenset(map(_test_of, names)) - {""} for at, names in contexts.items()}
    return Reach(lines, times_s)


def _test_of(context: str) -> str:
    """Return the test that a context names: of the process's start, of pytest's protocol, or of both."""
    started, _, inside = context.partition("|")
    return inside or started.rpartition(" (")[0] or started


def is_outside_functions(root: Path, path: str, line: int) -> bool:
    """Say whether a line is of the module or a class itself."""
    functions = (it for it in _graph(root).functions if it.path == path and not it.is_table)
    return not any(it.first <= line <= it.last for it in functions)


def leaves_kernels(root: Path, path: str, line: int) -> bool:
    """Say whether a change of a line leaves all machine code as it is.

    The line is of a plain function, of which nothing at the top of a module makes a constant, in a file that has no
    part in compiling itself.
    """
    graph = _graph(root)
    around = [it for it in graph.functions if it.path == path and it.first <= line <= it.last]
    compiles = path.startswith(COMPILING) or re.search(NUMBA, (root / path).read_text(encoding="utf-8"), re.MULTILINE)
    if compiles or not around or any(it.is_kernel or it.is_table for it in around):
        return False
    seen, due = {it.name for it in around}, [it.name for it in around]
    while due:  # its callers, and theirs
        name = due.pop()
        if name in graph.at_import:
            return False
        for user in graph.users[name]:
            if user.name not in seen and user.path.startswith(COMPILED):
                seen.add(user.name)
                due.append(user.name)
    return True


def state_of(root: Path) -> str:
    """Return a digest of the sources, their tests and what seeds faults."""
    digest = hashlib.sha256()
    paths = [path for room in SOURCES for path in (root / room).rglob("*.py")]
    for path in sorted((*paths, *(root / "benchmarks" / name for name in OURS))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def callers_of(root: Path, path: str, line: int) -> Iterator[tuple[str, int, int]]:
    """Yield path, first and last line of each plain function that a kernel around a line may be called by."""
    graph = _graph(root)
    functions = [it for it in graph.functions if it.path == path and it.first <= line <= it.last]
    if not functions or not functions[0].is_kernel:
        return
    seen, due = {functions[0].name}, [functions[0].name]
    while due:
        for caller in graph.users[due.pop()]:
            if caller.name in seen:
                continue
            seen.add(caller.name)
            if caller.is_kernel or caller.is_table:
                due.append(caller.name)
            else:
                yield caller.path, caller.first, caller.last


class Function(NamedTuple):
    """A function of the product, or a table of some at the top of a module."""

    name: str
    path: str
    first: int
    last: int
    is_kernel: bool
    is_table: bool


class _Graph(NamedTuple):
    functions: list[Function]
    users: Mapping[str, list[Function]]  # of a name: names are taken as unique, which only adds tests
    at_import: frozenset[str]  # names that modules of the rooms with kernels use while they are imported


_graphs: dict[Path, _Graph] = {}


def _graph(root: Path) -> _Graph:
    if root not in _graphs:
        functions: list[Function] = []
        users: dict[str, list[Function]] = defaultdict(list)
        at_import = set[str]()
        for room in SOURCES:
            for path in sorted((root / room).rglob("*.py")):
                if f"{room}/" in COMPILED:
                    at_import |= _names_at_import(path)
                for function, node in _functions_of(path, root):
                    functions.append(function)
                    for name in _names_in(node) - {function.name}:
                        users[name].append(function)
        _graphs[root] = _Graph(functions, users, frozenset(at_import))
    return _graphs[root]


def _functions_of(path: Path, root: Path) -> Iterator[tuple[Function, ast.stmt]]:
    """Yield functions, methods and top-level assignments of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    where = str(path.relative_to(root))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_kernel = any("kernel" in ast.unparse(it) or "njit" in ast.unparse(it) for it in node.decorator_list)
            yield Function(node.name, where, node.lineno, node.end_lineno or 0, is_kernel, is_table=False), node
    for top in tree.body:
        if isinstance(top, ast.Assign | ast.AnnAssign):
            targets = top.targets if isinstance(top, ast.Assign) else [top.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    last = top.end_lineno or 0
                    yield Function(target.id, where, top.lineno, last, is_kernel=False, is_table=True), top


def _names_at_import(path: Path) -> set[str]:
    tops = ast.parse(path.read_text(encoding="utf-8")).body
    plain = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return {name for top in tops if not isinstance(top, plain) for name in _names_in(top)}


def _names_in(node: ast.AST) -> set[str]:
    names = {it.id for it in ast.walk(node) if isinstance(it, ast.Name)}
    return names | {it.attr for it in ast.walk(node) if isinstance(it, ast.Attribute)}
