"""How the code is laid out: modules, folders, classes, names with several meanings, words of our own, length of docs.

Counts of what a reader has to find his way through. All come from the sources alone, so they are the same anywhere.
"""

import ast
import re
import statistics
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from .harness import ROOT, Row, main

SMALL, LARGE = 60, 250  # lines of a module that hardly is one, and of one that may stand alone with one importer
FITS = 700  # lines of a module that another one still fits into
OWN_WORDS = {"told": 0, "nobody": 0, "so many": 0}
NOT_A_USER_PAGE = ("decisions", "developers")  # folders of docs


class House:
    """The product's sources, parsed.

    Args:
        root: Of the checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        src = root / "src" / "longshore"
        rooms = {path.name: path.resolve() for path in src.iterdir() if path.is_symlink() and path.is_dir()}
        files = {f"longshore.{name}": path for name, path in rooms.items()} | {"longshore": src}
        self.paths: dict[str, Path] = {}  # of modules, packages too, by their dotted names
        for package, folder in files.items():
            for path in sorted(folder.rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                self.paths[".".join((package, *parts)).removesuffix(".__init__")] = path
        self.trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.paths.items()}
        self.lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in self.paths.items()}
        self.modules = {name: path for name, path in self.paths.items() if path.name != "__init__.py"}

    @cached_property
    def importers(self) -> Mapping[str, set[str]]:
        """The modules that import each module, late imports included."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                for target in self._imported(name, node):
                    if target != name:
                        found[target].add(name)
        return found

    def _imported(self, name: str, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in self.paths)
        if not isinstance(node, ast.ImportFrom):
            return
        package = name if self.paths[name].name == "__init__.py" else name.rpartition(".")[0]
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join((*above, *([node.module] if node.module else [])))
        for alias in node.names:
            yield from [it for it in (f"{base}.{alias.name}", base) if it in self.paths][:1]

    @cached_property
    def entered_from_outside(self) -> set[str]:
        """Modules that a name in pyproject.toml, or a command line, leads to: plug-ins and borders of processes."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        values = [value for group in project.get("entry-points", {}).values() for value in group.values()]
        values += project.get("scripts", {}).values()
        started = {
            name for name, tree in self.trees.items()
            if any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)
        }  # fmt: skip
        return {value.partition(":")[0] for value in values} | started

    def of_one_importer(self) -> list[str]:
        """Return the modules that would fit into the only one that imports them."""
        return [
            name for name in self.modules
            if len(users := self.importers.get(name, set())) == 1 and name not in self.entered_from_outside
            and self.lines[name] <= LARGE and self.lines[name] + self.lines[next(iter(users))] <= FITS
        ]  # fmt: skip

    def classes(self) -> Counter[str]:
        """Return how often each name is that of a class."""
        return Counter(
            node.name for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        )

    def constants(self) -> Mapping[str, set[str]]:
        """Return the values of each constant, as they stand there, those of one module once."""
        found: dict[str, set[str]] = defaultdict(set)
        for tree in self.trees.values():
            for node in tree.body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                value = getattr(node, "value", None)
                for target in targets:
                    if isinstance(target, ast.Name) and target.id.isupper() and value is not None:
                        found[target.id].add(ast.unparse(value))
        return found

    def passing_through(self) -> list[str]:
        """Return the functions that do nothing but call another one with their own parameters, in order."""
        return [
            f"{name}.{node.name}" for name, tree in self.trees.items() for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and not node.decorator_list and _passes_through(node)
        ]  # fmt: skip

    def protocols(self) -> Mapping[str, list[str]]:
        """Return the classes with all methods of each protocol, which is no base of others."""
        methods: dict[str, set[str]] = {}
        protocols: dict[str, set[str]] = {}
        bases: set[str] = set()
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    own = {it.name for it in node.body if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)}
                    names = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
                    if "Protocol" in names:
                        protocols[node.name] = own
                        bases |= names
                    else:
                        methods[node.name] = methods.get(node.name, set()) | own
        return {
            name: [it for it, has in methods.items() if wanted and wanted <= has]
            for name, wanted in protocols.items() if "__call__" not in wanted and name not in bases
        }  # fmt: skip


def _passes_through(node: ast.FunctionDef) -> bool:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr) or not isinstance(body[0].value, ast.Call):
        return False
    call = body[0].value
    given = [ast.unparse(it) for it in call.args] + [ast.unparse(it.value) for it in call.keywords]
    arguments = node.args
    own = [it.arg for it in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return bool(given) and given in (own, own[1:] if own[:1] == ["self"] else own)


def words(path: Path) -> list[str]:
    """Return the words of a page; the bars and rules of its tables, and other signs alone, are none."""
    return [word for word in path.read_text(encoding="utf-8").split() if re.search(r"\w", word)]


def measure() -> Iterator[Row]:
    """Count."""
    house = House(ROOT)
    sizes = [house.lines[name] for name in house.modules]
    yield Row("modules", len(sizes), "modules", most=340)
    yield Row("lines of a module, median", statistics.median(sizes), "lines", least=200, most=320)
    yield Row(f"modules under {SMALL} lines", sum(size < SMALL for size in sizes), "modules", most=15)
    yield Row("modules that fit into their only importer", len(house.of_one_importer()), "modules", most=0)
    yield Row("folders", len({path.parent for path in house.modules.values()}), "folders", most=60)
    yield Row("lines", sum(house.lines.values()), "lines", most=80_000)
    classes = house.classes()
    yield Row("classes", classes.total(), "classes", most=650)
    yield Row("class names used more than once", sum(count > 1 for count in classes.values()), "names", most=0)
    several = sum(len(values) > 1 for values in house.constants().values())
    yield Row("constants of one name with several meanings", several, "names", most=0)
    yield Row("functions that only pass their parameters on", len(house.passing_through()), "functions", most=0)
    few = [name for name, having in house.protocols().items() if len(having) < 2]
    yield Row("protocols that one class has or none", len(few), "protocols", most=0)
    docs = [*(ROOT / "docs").rglob("*.md")]
    texts = [*house.paths.values(), *docs, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for word, most in OWN_WORDS.items():
        found = sum(len(re.findall(rf"\b{word}\b", it.read_text(encoding="utf-8"), re.IGNORECASE)) for it in texts)
        yield Row(f"'{word}' in code and docs", found, "times", most=most)
    yield Row("words of the change log", len(words(ROOT / "CHANGELOG.md")), "words", most=1500)
    pages = [it for it in docs if it.parent.name not in NOT_A_USER_PAGE]
    yield Row("pages of docs for users", len(pages), "pages", most=24)
    yield Row("words of docs", sum(len(words(it)) for it in docs), "words", most=70_000)


if __name__ == "__main__":
    main(measure)
