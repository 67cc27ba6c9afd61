"""What is wrong with a request, in plain words, by the description that OpenAPI has of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute

from ....cluster.files.input_problems import MOST_TOLD, InputProblem, Schema, input_problems

BODY, JSON = "body", "application/json"


def invalid_detail(request: Request, errors: Sequence[Mapping[str, Any]], body: object) -> str:
    """Return what to tell whoever sent a request that cannot be used.

    Args:
        request: The request.
        errors: As pydantic lists them.
        body: What was sent, as far as it could be read.
    """
    document = request.app.openapi()
    operation = _operation(request, document)
    told = []
    for error in errors[:MOST_TOLD]:  # each takes a while to put into words
        part, *inside = error["loc"]
        if error["type"] == "json_invalid":
            told.append(f"body: it is no JSON: {error['ctx']['error']}")
            continue
        data = body if part == BODY else _parameter(inside, error["input"])
        schema = {**document, **_expected(operation, str(part))}
        told += [_words(it) for it in input_problems([{**error, "loc": tuple(inside)}], schema, data)]
    more = len(told) - 1 + len(errors[MOST_TOLD:])
    return f"{told[0]} ({more} more)" if more else told[0]


def _parameter(place: Sequence[str | int], value: object) -> object:
    """Return a parameter of a request as data that has it at its place."""
    for part in reversed(place):
        value = [None] * part + [value] if isinstance(part, int) else {part: value}
    return value


def _words(it: InputProblem) -> str:
    place = ".".join(map(str, it.place)) or BODY
    return f"{place}: {it.problem}; {it.fix}" if it.fix else f"{place}: {it.problem}"


def _operation(request: Request, document: Mapping[str, Any]) -> Mapping[str, Any]:
    route = request.scope.get("route")
    path = document["paths"].get(route.path_format, {}) if isinstance(route, APIRoute) else {}
    found: Mapping[str, Any] = path.get(request.method.lower(), {})
    return found


def _expected(operation: Mapping[str, Any], part: str) -> Schema:
    """Return what OpenAPI says of the body of a request, or of its parameters of one kind."""
    if part == BODY:
        found: Schema = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema", {})
        return found
    of_part = [it for it in operation.get("parameters", ()) if it["in"] == part]
    return {"type": "object", "properties": {it["name"]: it["schema"] for it in of_part}}
