"""No field of what comes in takes a value of another JSON type than its description names."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from longshore.cluster.files.yaml_file import ExactTypes
from longshore.scheduler.api.jobs import JobPatch, NewCheckpoint
from longshore.scheduler.api.nodes import ClearRequest, NewFinding
from longshore.scheduler.api.tokens import TokenRequest
from longshore.scheduler.health.evidence import GpuReport, NodeReport
from longshore.scheduler.model.job_spec import HealthSpec, JobFile, JobNeeds, RetrySpec, Shape

MODELS: tuple[type[ExactTypes], ...] = (
    JobFile, Shape, JobNeeds, RetrySpec, HealthSpec, GpuReport, NodeReport, NewCheckpoint, JobPatch, TokenRequest,
    NewFinding,
    ClearRequest,
)  # fmt: skip
SAMPLES = {"boolean": True, "integer": 4, "number": 0.5, "string": "4"}
FITS = {"number": ("number", "integer"), "integer": ("integer",)}


def types_of(schema: dict[str, Any]) -> set[str]:
    """Return the JSON types that a schema names, but for what lies in lists and objects."""
    found = {schema["type"]} if "type" in schema else set()
    if "enum" in schema or "$ref" in schema:
        found.add("string")  # each enumeration here is one of words
    return found.union(*map(types_of, schema.get("anyOf", ())))


def wrong_values() -> Iterator[tuple[type[ExactTypes], str, object]]:
    for model in MODELS:
        for name, schema in TypeAdapter(model).json_schema()["properties"].items():
            named = types_of(schema)
            taken = {kind for one in named for kind in FITS.get(one, (one,))}
            if named & {"boolean", "integer", "number"}:
                yield from ((model, name, value) for kind, value in SAMPLES.items() if kind not in taken)


@pytest.mark.parametrize(
    ("model", "name", "value"), [pytest.param(*it, id=f"{it[0].__name__}.{it[1]}={it[2]}") for it in wrong_values()]
)
def test_a_value_of_another_type_is_refused(model: type[ExactTypes], name: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate({name: value})

    assert (name,) in [it["loc"][:1] for it in refused.value.errors()]


@pytest.mark.parametrize("value", [4, 4.0])
def test_a_whole_number_may_have_a_point(value: float) -> None:
    assert JobFile.model_validate({"command": ["true"], "gpus": value}).gpus == 4
