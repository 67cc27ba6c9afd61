"""Job files: what is taken, and how those are read that another version has stored."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.cluster.files.yaml_file import read_yaml, validated
from longshore.scheduler.model.job_spec import JobFile, UnreadableSpecError, stored_job, stored_job_or_default

REFUSED = [
    ("gpus", 0), ("gpus", 10**9), ("estimate_s", 0.0), ("estimate_s", 5e-324), ("estimate_s", 1e9),
    ("estimate_s", math.nan), ("estimate_s", math.inf), ("limit_s", 0.0), ("limit_s", 1e-9), ("limit_s", math.inf),
    ("grace_s", -1.0), ("grace_s", 1e9), ("grace_s", math.nan), ("priority", 1001), ("priority", 10**30),
    ("compute_s", 5e-324), ("compute_s", 1e-7), ("compute_s", 0.0), ("compute_s", 1e300), ("compute_s", math.nan),
    ("parameter_bytes", -1.0), ("parameter_bytes", 1e300), ("parameter_bytes", math.inf),
    ("parameter_bytes", math.nan), ("health", {"hang": 5e-324}), ("health", {"hang": 0}), ("health", {"hang": 1e300}),
    ("retry", {"infra": -1}), ("retry", {"infra": 10**6}), ("retry", {"no_progress": 0}), ("image", "a\x00b"),
]  # fmt: skip
ODD = [
    ({"compute_s": 5e-324}, "compute_s", 1e-6), ({"compute_s": 0}, "compute_s", 1e-6),
    ({"compute_s": 1e300}, "compute_s", 86400.0), ({"compute_s": math.nan}, "compute_s", 1.0),
    ({"compute_s": "fast"}, "compute_s", 1.0), ({"estimate_s": 5e-324}, "estimate_s", 1e-3),
    ({"estimate_s": None}, "estimate_s", 3600.0), ({"parameter_bytes": math.inf}, "parameter_bytes", 1e15),
    ({"grace_s": 1e9}, "grace_s", 3600.0), ({"priority": 10**6}, "priority", 1000), ({"name": "A b"}, "name", "job"),
    ({"version": 2}, "version", 1), ({"of_a_later_version": {"x": [1]}}, "gpus", 1), ({"gpus": "all"}, "gpus", 1),
    ({"limit_s": "never"}, "limit_s", None),
]  # fmt: skip
NO_JOB: list[Any] = [
    None, 3, "sleep", [], {}, {"command": []}, {"command": "sleep 1"}, {"command": [1]}, {"gpus": 1},
    {"command": ["a"], "environment": {"A B": "x"}}, {"command": ["a"], "folder": 3},
    {"command": ["a"], "external": {"number": 17}}, {"command": ["a\x00"]},
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_number_that_no_job_can_have_is_refused_and_read_leniently_where_it_is_stored(
    field: str, value: object
) -> None:
    spec = {"command": ["true"], field: value}

    with pytest.raises(ValidationError):
        JobFile.model_validate(spec)
    if field != "image":  # that says what to run
        assert stored_job(spec).command == ("true",)


@pytest.mark.parametrize(("odd", "field", "expected"), ODD)
def test_a_stored_field_that_makes_no_sense_is_the_nearest_that_does_or_left_out(
    odd: dict[str, object], field: str, expected: object
) -> None:
    assert getattr(stored_job({"command": ["true"], **odd}), field) == expected


def test_what_is_odd_in_a_section_changes_nothing_beside_it() -> None:
    job = stored_job({"command": ["true"], "retry": {"infra": 3, "user": 10**6, "new": 1}, "health": {"slow": "later"}})

    assert (job.retry.infra, job.retry.user, job.health.slow) == (3, 1000, "cusum")


@pytest.mark.parametrize("spec", NO_JOB, ids=str)
def test_a_stored_job_that_does_not_say_what_to_run_is_no_other_job(spec: object) -> None:
    with pytest.raises(UnreadableSpecError, match="stored job file"):
        stored_job(spec)
    assert stored_job_or_default(spec).grace_s == 30.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*JobFile.model_fields, "external", "new"]), JSON))
def test_whatever_was_stored_is_read_or_called_unreadable(spec: dict[str, object]) -> None:
    try:
        job = stored_job({"command": ["true"], **spec})
    except UnreadableSpecError:
        return
    assert JobFile.model_validate(job.model_dump(exclude={"external"})).command == job.command


@pytest.mark.parametrize("odd", [{"spares": 1}, {"spares": 2, "shape": {"nodes": 1, "gpus_per_node": 1}}])
def test_fields_that_do_not_go_together_in_a_stored_job_are_called_unreadable(odd: dict[str, object]) -> None:
    with pytest.raises(UnreadableSpecError, match="cannot be used"):
        stored_job({"command": ["true"], **odd})


@pytest.mark.parametrize("text", ["preflight: off", "health: {slow: off, hang: off}", "name: 'off'", "name: on"])
def test_off_and_on_are_words_and_need_no_quotes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"command: [a, no, yes]\n{text}\n")
    file = read_yaml(path, "docs/scheduler.md")
    job = validated(file, JobFile, file.data)
    assert job.command == ("a", "no", "yes")
    assert {"off", "on"} & {job.preflight, job.health.slow, job.health.hang, job.name}
