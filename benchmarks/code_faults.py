"""Faults seeded into code: small changes, each of which a good suite of tests notices."""

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Where a wrong line costs a user most. `scheduler/store` and the others stand for all below them.
ROOMS = ("cluster", "envs", "agents", "scheduler/rules", "scheduler/store", "scheduler/control")
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is not": "is", "is": "is not",
               "not in": "in", "in": "not in"}  # fmt: skip
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "//": "*", "/": "*", "%": "*", "**": "*", "&": "|", "|": "&",
              "<<": ">>", ">>": "<<", "^": "&", "@": "+"}  # fmt: skip

Span = tuple[int, int]
Offset = Callable[[int, int], int]  # from a line and a column in bytes to a character of the text


class Fault(NamedTuple):
    """A change of one place of a file; offsets count characters of the file's text."""

    path: str  # from the root
    line: int
    begin: int
    end: int
    replacement: str

    @property
    def name(self) -> str:
        """A name that no other fault has."""
        return f"{self.path}:{self.line}:{self.begin}:{self.replacement.strip()}"

    def applied(self, text: str) -> str:
        """Return the text of its file with the fault in it."""
        return text[: self.begin] + self.replacement + text[self.end :]


def sample(root: Path, count: int, seed: int, rooms: Sequence[str] = ROOMS) -> list[Fault]:
    """Return faults of a checkout, the same ones for one seed and one state of the sources."""
    paths = sorted(path for room in rooms for path in (root / room).rglob("*.py"))
    found = [fault for path in paths for fault in faults_in(path, root)]
    return random.Random(seed).sample(found, min(count, len(found)))


def faults_in(path: Path, root: Path) -> list[Fault]:
    """Return every fault that can be seeded into a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    for node, (begin, end), replacement in _changes(ast.parse(text), text, offset):
        fault = Fault(str(path.relative_to(root)), node.lineno, begin, end, replacement)
        if _is_code(fault.applied(text)):
            found.append(fault)
    return found


def _is_code(text: str) -> bool:
    try:
        compile(text, "fault", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    """Collects what runs: no docstrings, no annotations, no imports."""

    def __init__(self) -> None:
        self.nodes: list[ast.expr | ast.stmt] = []

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        del node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in (*node.args.defaults, *(it for it in node.args.kw_defaults if it is not None), *node.body):
            self.visit(child)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        for child in node.body:
            self.visit(child)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        del node  # texts are no matter of these faults, and columns inside are not those of the file

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.Constant | ast.If | ast.Expr):
            self.nodes.append(node)
        super().generic_visit(node)


def _changes(tree: ast.Module, text: str, offset: Offset) -> Iterator[tuple[ast.expr | ast.stmt, Span, str]]:
    finder = _Finder()
    finder.visit(tree)
    for node in finder.nodes:
        whole = _span(node, offset)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _swapped(node, node.left, node.comparators[0], COMPARISONS, text, offset)
        elif isinstance(node, ast.BinOp):
            yield from _swapped(node, node.left, node.right, ARITHMETIC, text, offset)
        elif isinstance(node, ast.BoolOp):
            yield from _swapped(node, node.values[0], node.values[1], {"and": "or", "or": "and"}, text, offset)
        elif isinstance(node, ast.If):
            span = _span(node.test, offset)
            yield node.test, span, f"not ({text[slice(*span)]})"
        else:
            for replacement in _other_value(node, text[slice(*whole)]):
                yield node, whole, replacement


def _other_value(node: ast.AST, text: str) -> Iterator[str]:
    """Yield what a sign, a negation, a constant or a call of no result is turned into."""
    if isinstance(node, ast.Expr):
        yield from ["None"] if isinstance(node.value, ast.Call) else []
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"bool({text.removeprefix('not').strip()})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield text.removeprefix("-")
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"({text} + 1)"


def _span(node: ast.expr | ast.stmt, offset: Offset) -> Span:
    return offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)


def _swapped(
    node: ast.expr, left: ast.expr, right: ast.expr, words: dict[str, str], text: str, offset: Offset
) -> Iterator[tuple[ast.expr, Span, str]]:
    """Yield the change of the operator that stands between two operands, if it stands there alone."""
    begin, end = _span(left, offset)[1], _span(right, offset)[0]
    between = text[begin:end]
    bare = between.replace("(", " ").replace(")", " ").replace("\\", " ").strip()
    if " ".join(bare.split()) in words:
        at = between.index(bare)
        yield node, (begin + at, begin + at + len(bare)), words[" ".join(bare.split())]
