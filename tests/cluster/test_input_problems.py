"""What people read about input that cannot be used, over all kinds of errors that our models know."""

import datetime
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from longshore.agents.learned.schema import Schema
from longshore.cluster.faults.models import FAULT_MODELS
from longshore.cluster.faults.recorded import FaultEvent
from longshore.cluster.files.errors import InputError, ManyProblemsError
from longshore.cluster.files.input_problems import MAX_LETTERS, input_problems, name_advice
from longshore.cluster.files.yaml_file import read_yaml, validated
from longshore.cluster.presets.cluster_file import ClusterFile
from longshore.cluster.traces.philly import PhillyJob
from longshore.scheduler.api.jobs import JobPatch, NewCheckpoint
from longshore.scheduler.api.nodes import DrainRequest
from longshore.scheduler.api.tokens import TokenRequest
from longshore.scheduler.backends.kubernetes.settings import KubernetesSettings
from longshore.scheduler.backends.local.backend import LocalSettings
from longshore.scheduler.backends.ray.backend import RaySettings
from longshore.scheduler.backends.slurm.backend import SlurmSettings
from longshore.scheduler.health.evidence import NodeReport
from longshore.scheduler.model.job_spec import JobFile
from longshore.scheduler.settings import SchedulerSettings
from longshore.training.config import TrainingConfig

MODELS: list[type[BaseModel]] = [
    JobFile, SchedulerSettings, ClusterFile, KubernetesSettings, SlurmSettings, RaySettings, LocalSettings,
    JobPatch, TokenRequest, DrainRequest, NewCheckpoint, NodeReport, TrainingConfig, Schema, FaultEvent, PhillyJob,
    *FAULT_MODELS.values(),
]  # fmt: skip
HOSTILE: list[object] = [
    None, True, 0, -1, 3, 2**70, 10**400, 0.5, -0.5, 1e300, math.nan, math.inf, "", "x", "X y", "a\0b", "x" * 200_000,
    "12", "auto ", [], ["x"], [1] * 2000, ["x"] * 2000, {}, {"": 1}, {"1 a": "x"}, {"a": 1}, {"x" * 300: "y"}, {5: 6},
    datetime.date(2026, 1, 1),
]  # fmt: skip
PYDANTIC = re.compile(
    "should match pattern|should have at|valid (string|integer|number|boolean|dict|list|tuple)|Input|instance|"
    "unable to|parse|greater than|less than|constrained|ensure|finite_number|function-"
)
KINDS = {
    "bool_parsing", "bool_type", "dataclass_type", "dict_type", "enum", "extra_forbidden", "finite_number",
    "float_parsing", "float_type", "greater_than", "greater_than_equal", "int_from_float", "int_parsing",
    "int_parsing_size", "int_type", "invalid_key", "less_than", "less_than_equal", "list_type", "literal_error",
    "missing", "model_type", "path_type", "string_pattern_mismatch", "string_too_long", "string_too_short",
    "string_type", "too_long", "too_short", "tuple_type", "unexpected_keyword_argument", "value_error",
}  # fmt: skip


def put(data: Any, at: tuple[str | int, ...], value: object) -> Any:
    """Return a copy of some input with another value at a place."""
    if not at:
        return value
    if isinstance(at[0], int):
        return [put({}, at[1:], value)]
    return {**data, at[0]: put(data.get(at[0], {}) if isinstance(data, dict) else {}, at[1:], value)}


def places(schema: dict[str, Any], root: dict[str, Any], deep: int = 5) -> Iterator[tuple[str | int, ...]]:
    """Yield the places that a schema knows."""
    yield ()
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for key, below in schema.get("properties", {}).items() if deep else ():
        yield from ((key, *inside) for inside in places(below, root, deep - 1))
    for below in schema.get("anyOf", []) if deep else ():
        yield from places(below, root, deep - 1)
    if isinstance(schema.get("items"), dict) and deep:
        yield from ((0, *inside) for inside in places(schema["items"], root, deep - 1))
    for below in (schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()):
        if isinstance(below, dict) and deep:
            yield from (("k", *inside) for inside in places(below, root, deep - 1))


def refusals(model: type[BaseModel]) -> Iterator[tuple[object, ValidationError]]:
    """Yield hostile input for every place that a model knows, as far as it is refused."""
    schema = model.model_json_schema()
    for at in dict.fromkeys(places(schema, schema)):
        for value in (*HOSTILE, {"unknown_key": 1}):
            data = put({}, at, value)
            try:
                model.model_validate(data)
            except ValidationError as error:
                yield data, error


@pytest.mark.few(6)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_whatever_is_refused_is_told_in_plain_words(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    for data, error in refusals(model):
        found = input_problems(error.errors(include_url=False), schema, data)
        assert found
        assert len({it.place for it in found}) == len(found)
        for it in found:
            words = f"{it.problem}; {it.fix}"
            assert it.problem, data
            assert not PYDANTIC.search(re.sub("'[^']*'", "", words)), words
            assert not re.search(r"should be (?:;|$)", words), words
            assert "\n" not in words


def test_all_kinds_of_errors_that_our_models_know_are_met() -> None:
    met = {str(it["type"]) for model in MODELS for _, error in refusals(model) for it in error.errors()}
    assert met == KINDS


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_what_a_pattern_asks_for_is_also_said_in_words(model: type[BaseModel]) -> None:
    def check(schema: object) -> None:
        if isinstance(schema, dict):
            assert not {"pattern", "patternProperties"} & schema.keys() or "description" in schema, schema
            list(map(check, schema.values()))
        if isinstance(schema, list):
            list(map(check, schema))

    check(model.model_json_schema())


JOB_FILES = [
    ("gpus: two", "1:gpus: 'two' cannot be used; it should be a whole number from 1 to 1000000"),
    ("gpus:", "1:gpus: has no value; it should be a whole number from 1 to 1000000"),
    ("gpus: 2.5", "1:gpus: '2.5' cannot be used; it should be a whole number from 1 to 1000000"),
    ("name: My Job", "1:name: 'My Job' cannot be used; it should be 1 to 40 small letters, digits and -, the first "
     "and the last no -"),
    ("image: 5", "1:image: '5' cannot be used; it should be text of at most 512 characters, none of them zero; "
     "write it in quotes"),
    ("estimate_s: 1h", "1:estimate_s: '1h' cannot be used; it should be a number from 0.001 to 31622400"),
    ("estimate_s: .nan", "1:estimate_s: '.nan' cannot be used; it should be a number from 0.001 to 31622400"),
    ("gpu: 4", "1:gpu: unknown key; did you mean 'gpus'?"),
    ("command: a b", "1:command: 'a b' cannot be used; it should be a list of 1 to 1000 values"),
    ("command: []", "1:command: an empty list cannot be used; it should be a list of 1 to 1000 values"),
    ("health: {slow: cusun}", "1:health.slow: 'cusun' cannot be used; it should be cusum, ewma, "
     "in_a_row, mad, median_k, patent_literal, patent_mean or off; did you mean 'cusum'?"),
    ("health: {hang: offf}", "1:health.hang: 'offf' cannot be used; it should be auto or off, or a number from 0.001 "
     "to 31622400; did you mean 'off'?"),
    ("retry: 3", "1:retry: '3' cannot be used; it should be keys with values"),
    ("environment: {1A: x}", "1:environment.1A: the key '1A' cannot be used; it should be letters, digits and _, "
     "at most 128, the first no digit"),
    ("environment:\n  A: 1234567", "2:environment.A: the value cannot be used; it should be text of at most 131072 "
     "characters, none of them zero; write it in quotes"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), JOB_FILES)
def test_a_job_file_that_cannot_be_used_is_an_error_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(line if line.startswith("command") else f"{line}\ncommand: [x]\n")
    file = read_yaml(path, "docs/scheduler.md")
    with pytest.raises(InputError) as caught:
        validated(file, JobFile, file.data)
    assert str(caught.value) == f"{path}:{message}"


def test_all_that_is_wrong_is_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("gpu: 4\nname: A B\ncommand: [x]\nretry:\n  infra: -1\n  usr: 1\n")
    file = read_yaml(path, "docs/scheduler.md")
    with pytest.raises(ManyProblemsError) as caught:
        validated(file, JobFile, file.data)
    places = [line.removeprefix(f"{path}:").partition(": ")[0] for line in str(caught.value).splitlines()]
    assert places == ["1:gpu", "2:name", "5:retry.infra", "6:retry.usr"]


def test_all_keys_that_stand_twice_are_told(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("a: 1\na: 2\nb: {c: 1, c: 2}\n")
    with pytest.raises(ManyProblemsError) as caught:
        read_yaml(tmp_path / "job.yaml", "docs/scheduler.md")
    assert len(caught.value.errors) == 2


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: 1\n",
        "{{a: 1}: 2}",
        "{[a]: 1, [b]: 2, [a]: 3}",
        "? - a\n: 1\n",
        f"{'? ' * 150}[{'a, ' * 50_000}a]",
        f"{'{? ' * 150}[{'a, ' * 50_000}a]{'}' * 150}",
    ],
    ids=lambda text: text[:20],
)
def test_a_key_that_is_no_word_is_refused_at_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(InputError, match=r"job\.yaml:1: a key must be one word"):
        read_yaml(tmp_path / "job.yaml", "docs/scheduler.md")


def test_a_key_may_be_any_word(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("? a b\n: 1\n'[c]': 2\n? |-\n  d\n  e\n: 3\n<<: {f: 4}\n")
    assert read_yaml(tmp_path / "job.yaml", "docs/scheduler.md").data == {"a b": 1, "[c]": 2, "d\ne": 3, "f": 4}


def test_an_empty_file_names_the_page_that_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("\n")
    with pytest.raises(InputError, match=re.escape("the file is empty; docs/scheduler.md describes what it holds")):
        read_yaml(tmp_path / "job.yaml", "docs/scheduler.md")


def test_what_is_larger_than_a_file_by_hand_is_not_read_to_its_end() -> None:
    with pytest.raises(InputError, match="more than 1000000 bytes"):
        read_yaml(Path("/dev/zero"), "docs/scheduler.md")


def test_problems_are_the_same_for_json() -> None:
    data = json.loads('{"gpus": 0, "command": ["x"], "name": null}')
    with pytest.raises(ValidationError) as caught:
        JobFile.model_validate(data)
    found = input_problems(caught.value.errors(), JobFile.model_json_schema(), data)
    assert [(it.place, it.problem) for it in found] == [(("name",), "has no value"), (("gpus",), "'0' cannot be used")]


@pytest.mark.parametrize("letters", [MAX_LETTERS, MAX_LETTERS + 1, 200])
def test_a_name_is_compared_with_those_that_are_known_where_that_is_soon_done(letters: int) -> None:
    known = ["b" * letters, "a" * letters]
    assert name_advice("a" * (letters - 1) + "b", known).startswith(
        "did you mean" if letters <= MAX_LETTERS else "known:"
    )
    assert name_advice("a", known).startswith("known:")


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ([], ["an empty list cannot be used"]),
        ([1], ["a list of 1 values cannot be used"]),
        ([-1], ["'-1' cannot be used", "a list of 1 values cannot be used"]),
        ([-1, 2], ["'-1' cannot be used"]),
        ([-1, "x"], ["'-1' cannot be used", "'x' cannot be used"]),
    ],
)
def test_a_list_is_too_short_by_what_stands_in_it_and_not_by_what_is_right(
    given: list[Any], problems: list[str]
) -> None:
    class Model(BaseModel):
        it: tuple[Annotated[int, Field(gt=0)], ...] = Field(min_length=2)

    with pytest.raises(ValidationError) as error:
        Model.model_validate({"it": given})
    found = input_problems(error.value.errors(), Model.model_json_schema(), {"it": given})
    assert sorted(it.problem for it in found) == sorted(problems)


CORE_TAGS = (
    "int", "float", "bool", "null", "timestamp", "binary", "str", "seq", "map", "set", "omap", "pairs", "merge",
    "value", "python/name:os.system",
)  # fmt: skip
TEXTS = (
    "", "x", "''", "-", "+", ".", "_", "0x", "0b", "0o", ":", "1:", "1", "1e3", "1e999", "~", "=", "<<", "2001-13-45",
    "2001-02-30T25:00:00", "[1]", "{a: 1}", "9" * 5000,
)  # fmt: skip


def line_of_problem(path: Path) -> int | None:
    """Return the line at which a file cannot be read, 0 if it can be."""
    try:
        read_yaml(path, "docs/clusters.md")
    except InputError as error:
        return error.line
    return 0


@pytest.mark.parametrize("tag", CORE_TAGS)
def test_a_tag_that_its_text_does_not_fit_is_one_problem_of_its_line(tag: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for text in TEXTS:
        path.write_text(f"first: 1\nsecond: !!{tag} {text}\n")
        assert line_of_problem(path) in (0, 2, 3), text
