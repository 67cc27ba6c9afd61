"""Text from outside meets our regular expressions: none takes a time that grows with the square of its length."""

import ast
import importlib
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from longshore.cluster.files import durations
from longshore.cluster.files.yaml_file import FLOAT, TextLoader
from tests.support.budgets import examples

ROOT = Path(__file__).parents[1]
ROOMS = ("agents", "cluster", "envs", "eval", "planner", "preflight", "ring", "scheduler", "training")
LENGTH = 200_000  # whose square takes half a minute and more, where other patterns take milliseconds
CPU_S = 1.0
KNOWN_TO_MATCH = {durations._PART}  # what it looks for in a text was seen to be all that the text is

Use = tuple[re.Pattern[Any], str]  # with what it is asked


def uses_in(path: Path) -> Iterator[Use]:
    """Yield the patterns of a module, each with what it is asked."""
    tree = ast.parse(path.read_text())
    calls = [it for it in ast.walk(tree) if isinstance(it, ast.Call) and asks_re(it.func)]
    if not calls:
        return
    module = importlib.import_module(".".join(("longshore", *path.relative_to(ROOT).with_suffix("").parts)))
    for call in calls:
        if ast.unparse(call.func) == "re.compile":
            pattern = eval(ast.unparse(call), vars(module))
            yield from ((pattern, asked) for asked in asked_of(pattern, tree, module))
        else:
            yield re.compile(eval(ast.unparse(call.args[0]), vars(module))), ast.unparse(call.func).removeprefix("re.")


def asks_re(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"


def asked_of(pattern: re.Pattern[Any], tree: ast.Module, module: Any) -> Iterator[str]:
    """Yield what a module asks a compiled pattern; `match`, as PyYAML does, if it hands it on."""
    names = {name for name, value in vars(module).items() if value == pattern}
    asked = {
        it.attr for it in ast.walk(tree)
        if isinstance(it, ast.Attribute) and isinstance(it.value, ast.Name) and it.value.id in names
    }  # fmt: skip
    yield from asked or {"match"}


def yaml_uses() -> Iterator[Use]:
    """Yield what tells PyYAML the types of words, its own patterns and ours."""
    for _, pattern in set(chain.from_iterable(TextLoader.yaml_implicit_resolvers.values())):
        yield pattern, "match"


FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
YAML = "what PyYAML asks"
ASKING = [path.relative_to(ROOT).as_posix() for path in FILES if re.search(r"\bre\.\w+\(", path.read_text())]


def tried_of(file: str) -> list[Use]:
    """Return the patterns of a file that are tried, each with what it is asked."""
    uses = yaml_uses() if file == YAML else uses_in(ROOT / file)
    return sorted((it for it in dict.fromkeys(uses) if it[0].pattern not in KNOWN_TO_MATCH), key=repr)


@contextmanager
def little_time() -> Iterator[None]:
    """Stop what takes long; regular expressions look for signals on their way."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)  # of this process: others may keep the machine busy
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def ask(pattern: re.Pattern[Any], asked: str, text: Any) -> None:
    with little_time():
        if asked == "sub":
            pattern.sub(text[:0], text)
        else:
            getattr(pattern, asked)(text)


@pytest.mark.few(9)
@pytest.mark.parametrize("file", [*ASKING, YAML])
def test_no_text_takes_a_pattern_long(file: str) -> None:
    for pattern, asked in tried_of(file):
        tried = settings(max_examples=examples(30), phases=(Phase.explicit, Phase.generate))  # and not again and again
        tried(given(data=st.data())(ask_samples))(pattern, asked)


def ask_samples(pattern: re.Pattern[Any], asked: str, data: st.DataObject) -> None:
    sample: Any = data.draw(st.from_regex(pattern))
    at, size = data.draw(st.integers(0, len(sample))), data.draw(st.integers(1, 3))
    repeated = sample[at : at + size]
    end = data.draw(st.sampled_from((sample[at + size :], sample[:0], "y" if isinstance(sample, str) else b"y")))
    ask(pattern, asked, sample[:at] + repeated * (LENGTH // max(1, len(repeated))) + end)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("pattern", "asked", "text"),
    [
        (r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", "match", "1" * LENGTH + "y"),
        (r"\(.*?\)", "sub", "(" * LENGTH),
        (r"(\d+)$", "search", "1" * LENGTH + "y"),
    ],
)
def test_a_pattern_that_takes_the_square_is_noticed(pattern: str, asked: str, text: str) -> None:
    with pytest.raises(TimeoutError):
        ask(re.compile(pattern), asked, text)


@given(st.text("+-.eE019x\n\u0663", max_size=9) | st.from_regex(FLOAT))
def test_numbers_with_an_exponent_are_those_of_yaml_1_2(text: str) -> None:
    described = re.match(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", text)
    assert (FLOAT.match(text) is None) == (described is None)
