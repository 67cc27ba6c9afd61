import ast
import re
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import processes

ROOT = Path(__file__).parent.parent
ROOMS = ("cluster", "envs", "agents", "training", "eval", "ring", "preflight", "scheduler", "planner")
LINKS = (*ROOMS, "checkpoints")


@pytest.mark.parametrize("name", LINKS)
def test_a_room_is_linked_into_the_package(name: str) -> None:
    link = ROOT / "src" / "longshore" / name
    assert link.is_symlink(), f"{link} is no link: set `git config core.symlinks true` and check out again"
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / name


def test_an_image_is_built_from_every_folder_that_the_package_links_to() -> None:
    lines = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    links = {path.name for path in (ROOT / "src" / "longshore").iterdir() if path.is_symlink()}
    assert lines[0] == "**"  # nothing passes but what the lines below name
    assert {f"!{name}" for name in (*links, "src")} <= set(lines)


def test_the_messages_that_troubleshooting_quotes_occur_in_the_sources() -> None:
    page = (ROOT / "docs" / "operate.md").read_text().split("\n## When something is wrong\n")[1]
    symptoms = re.findall(r"^\| (.+?) \| .+ \|$", page, re.MULTILINE)
    quoted = [text for symptom in symptoms for text in re.findall(r"`([^`]+ [^`]+)`", symptom)]
    assert len(quoted) > 5
    texts = [path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    # "..." stands for what a message fills in.
    parts = [part.strip() for text in quoted for part in text.split("...") if part.strip()]
    assert [part for part in parts if not any(part in text for text in texts)] == []


def test_only_rooms_are_packages_at_the_top() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {*ROOMS, "benchmarks"}


# NAME.py is for the reader to choose.
NAMED_FILE = re.compile(rf"\b(?:{'|'.join((*ROOMS, 'tests', 'benchmarks'))})/(?:\w+/)*[a-z0-9_]+\.py")


def test_the_files_that_pages_and_the_product_name_exist() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "checkpoints").glob("*.md"), *ROOT.glob("*.md")]
    texts = [*pages, *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]
    named = {(text.name, name) for text in texts for name in NAMED_FILE.findall(text.read_text())}
    assert len(named) > 50
    assert {(text, name) for text, name in named if not (ROOT / name).is_file()} == set()


def test_the_functions_that_pages_name_behind_their_file_exist() -> None:
    named = {
        (page.name, file, name)
        for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
        for file, name in re.findall(r"`([\w/]+\.py)` `([A-Za-z]\w+)`", page.read_text())
    }
    assert len(named) > 10
    gone = [it for it in named if not re.search(rf"\b{it[2]}\b", (ROOT / it[1]).read_text())]
    assert gone == []


def sources() -> list[Path]:
    return [path for room in (*ROOMS, "src", "tests", "benchmarks") for path in (ROOT / room).rglob("*.py")]


class Facts(NamedTuple):
    imported: set[str]
    imports: list[ast.Import | ast.ImportFrom]
    functions: list[tuple[int, str]]  # the length of each, docstring and all, and its name
    classes: list[tuple[str, set[str]]]  # the name of each, and its bases
    called: set[str]  # as the source names it


@cache
def facts_of(path: Path) -> Facts:
    """Return what the tests ask of a module: each is parsed once for all of them."""
    facts = Facts(set(), [], [], [], set())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            facts.imports.append(node)
        if isinstance(node, ast.Import):
            facts.imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            facts.imported.update([node.module] if node.level == 0 and node.module else [])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            facts.functions.append(((node.end_lineno or 0) - node.lineno + 1, f"{path}:{node.name}"))
        elif isinstance(node, ast.ClassDef):
            facts.classes.append((node.name, {base.id for base in node.bases if isinstance(base, ast.Name)}))
        elif isinstance(node, ast.Call):
            facts.called.add(ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else "")
    return facts


def test_no_module_imports_a_room_by_its_bare_name() -> None:
    # From the checkout's root `import envs` would find the folder and load it a second time.
    for path in sources():
        assert not {name.split(".")[0] for name in facts_of(path).imported} & set(ROOMS), path


def files_of_tests_in(node: ast.Import | ast.ImportFrom, package: tuple[str, ...]) -> list[str]:
    """Return the names in an import that are files of tests, or in one; `package` are the folders of its module."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        above = package[: len(package) - node.level + 1] if node.level else ()
        base = ".".join([*above, *([node.module] if node.module else [])])
        names = [f"{base}.{alias.name}" for alias in node.names]
    return [name for name in names if name.startswith("tests.") and re.search(r"\.test_", name)]


@pytest.mark.parametrize(
    "line",
    [
        "import tests.cluster.test_engine",
        "from tests.cluster.test_engine import agree",
        "from tests.cluster import test_engine as engine",
        "from .test_engine import agree",
        "from . import heap, test_engine",
        "from ..cluster.test_engine import agree",
        "def late() -> None:\n    from tests.cluster.test_engine import agree",
    ],
)
def test_an_import_from_a_file_of_tests_is_found_however_it_is_written(line: str) -> None:
    nodes = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Import | ast.ImportFrom)]
    (found,) = [name for node in nodes for name in files_of_tests_in(node, ("tests", "cluster"))]
    assert found.startswith("tests.cluster.test_engine")


def test_no_module_imports_from_a_file_of_tests() -> None:
    """What several files use is in a module of its own, or else it is loaded twice and needs all that its file does."""
    assert [
        (str(path), name)
        for path in sources()
        for node in facts_of(path).imports
        for name in files_of_tests_in(node, path.relative_to(ROOT).parts[:-1])
    ] == []


STARTS = re.compile(r"(os|pty)\.(fork|forkpty|posix_spawnp?|spawn\w*|system|popen)|.*\.create_subprocess_\w+")


def starts_processes(path: Path) -> bool:
    """Return whether a module does itself."""
    facts = facts_of(path)
    return bool({"subprocess", "multiprocessing"} & facts.imported or any(map(STARTS.fullmatch, facts.called)))


def test_tests_start_processes_by_their_helper_alone() -> None:
    """It gives them default signals, ends each wait for them, and ends them with the tests."""
    tests = ROOT / "tests"
    hidden = tests / "scheduler" / "backends" / "hidden_process.py"  # a program, which a test starts by the helper
    found = [it for it in tests.rglob("*.py") if tests / "support" not in it.parents and it != hidden]
    assert [it for it in found if starts_processes(it)] == []


def test_checkpoints_are_found_in_the_package() -> None:
    names = {entry.name for entry in (files("longshore") / "checkpoints").iterdir()}
    assert {"hetero64.zip", "hetero64.md"} <= names


def test_the_command_line_imports_nothing_heavy() -> None:
    code = "import sys, longshore.cli; print(*sys.modules)"
    done = processes.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "numba", "numpy", "pandas", "polars", "matplotlib", "gymnasium", "ray", "ortools"}


def test_pages_and_routes_know_neither_the_loop_nor_its_parts() -> None:
    knows = re.compile(r"\.reconciler\b|\.parts\b")
    for folder in ("api", "dashboard"):
        for path in (ROOT / "scheduler" / folder).rglob("*.py"):
            assert not knows.search(path.read_text()), f"{path} knows more of the scheduler than its facade"
