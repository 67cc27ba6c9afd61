"""The journal of decisions: the calls of the mirror between two decisions, as JSON, so that decisions can be replayed.

The decisions of one scheduler in their order are one journal. The first record holds the cluster as it was; each holds
the calls since the record before, the decision itself last. Records are numbered, so that a gap is noticed.

Source: SPEC R9.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from ...cluster.files.errors import InputError
from ...cluster.files.input_problems import shortened
from ...cluster.model.problem import ORDERS, FaultProcess, Rules
from ...cluster.model.topology import Cluster
from .cluster_mirror import Beliefs, ClusterSite, JobRecord, JobRequest, MirrorCall, MirrorOrigin, QueueTurn, Spread

_REQUEST = (
    tuple[str, int, float, float, int, float, float]  # fields at their defaults are omitted from the end
    | tuple[str, int, float, float, int, float, float, tuple[int, ...]]
    | tuple[str, int, float, float, int, float, float, tuple[int, ...], Spread]
    | tuple[str, int, float, float, int, float, float, tuple[int, ...], Spread | None, str]
)
_SHORT_PROGRESS = tuple[float, float, float, float, int, float, float, float, float, tuple[int, ...]]
_PROGRESS = _SHORT_PROGRESS | tuple[float, float, float, float, int, float, float, float, float, tuple[int, ...], bool]
_FLOATS = tuple[float, ...]
_OF_METHOD: dict[str, TypeAdapter[tuple[Any, ...]]] = {
    "begin": TypeAdapter(tuple[float]),
    "submit": TypeAdapter(tuple[_REQUEST]),
    "come_back": TypeAdapter(tuple[_REQUEST, _PROGRESS]),
    "rejoin": TypeAdapter(tuple[_REQUEST, _PROGRESS]),
    "finish": TypeAdapter(tuple[str]),
    "give_place": TypeAdapter(tuple[str, int, str | None]),
    "stop": TypeAdapter(tuple[str, float | None]),
    "withdraw": TypeAdapter(tuple[str]),
    "take_out": TypeAdapter(tuple[int]),
    "bring_back": TypeAdapter(tuple[int]),
    "fail": TypeAdapter(tuple[tuple[int, ...]]),
    "claim": TypeAdapter(tuple[str, int]),
    "give_up": TypeAdapter(tuple[str, int]),
    "carry_out": TypeAdapter(tuple[str, tuple[int, ...]]),
    "wait": TypeAdapter(tuple[bool]),
    "pass_over": TypeAdapter(tuple[()]),
}
_REQUEST_FIELDS = attrgetter(*(field.name for field in fields(JobRequest)))
_RECORD_FIELDS = attrgetter(*(field.name for field in fields(JobRecord)))
DECISION_CALLS = frozenset({"carry_out", "wait"})
_ORIGIN: TypeAdapter[Any] = TypeAdapter(
    tuple[float, list[tuple[_REQUEST, _PROGRESS]], list[str], list[int], tuple[int, float]]
)
_BELIEFS: TypeAdapter[Any] = TypeAdapter(tuple[_FLOATS, _FLOATS, tuple[int, ...], _FLOATS, _FLOATS, _FLOATS, _FLOATS])
_TURNS: TypeAdapter[list[QueueTurn]] = TypeAdapter(list[QueueTurn])
COMPRESSED_FROM = 4096  # bytes
MAX_JOURNAL_BYTES = 1 << 30
MAX_JOURNAL_GPUS = 1 << 31  # of a job
MAX_TURN_NUMBER = 1 << 62


class JournalRecord(NamedTuple):
    """The calls of the mirror up to a decision, and the decision."""

    number: int  # in its journal, from 0
    opening: tuple[ClusterSite, MirrorOrigin] | None  # of the first alone
    calls: Sequence[MirrorCall]  # the decision last


def encode_opening(site: ClusterSite, origin: MirrorOrigin) -> str:
    """Return the beginning of a journal, for `encode_record`; separate, as it takes long where there are many jobs."""
    learned = {} if origin.beliefs is None else {"beliefs": origin.beliefs}
    turns = {"turns": list(origin.turns)} if origin.turns else {}
    jobs = [[_json_fields(request), _json_fields(record)] for request, record in origin.jobs]
    known = [origin.now_s, jobs, list(origin.queue), list(origin.down), list(origin.estimates)]
    return _compact_json({"site": _site_to_json(site), "known": known, **learned, **turns})[1:-1] + ","


def encode_record(number: int, calls: Sequence[MirrorCall], opening: str = "") -> bytes:
    """Return what is stored with a decision.

    Args:
        number: Of the decision in its journal.
        calls: Of the mirror since the decision before, the decision itself last.
        opening: For the first decision, the beginning of the journal.
    """
    entries = [[method, *map(_json_argument, arguments)] for method, arguments in calls]
    data = f"{{{opening}{_compact_json({'number': number, 'calls': entries})[1:]}".encode()
    return zlib.compress(data, 1) if len(data) >= COMPRESSED_FROM else data


def _compact_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def record_to_json(data: bytes) -> dict[str, object]:
    """Return what is stored with a decision as an object of JSON."""
    if not data.startswith(b"{"):
        data = zlib.decompressobj().decompress(data, MAX_JOURNAL_BYTES)
    written: dict[str, object] = json.loads(data)
    return written


class ForeignJournalError(InputError):
    """A journal under an order regime that is not installed here."""


def decode_record(written: Mapping[str, Any]) -> JournalRecord:
    """Return the record of a decision from an object of JSON.

    Raises:
        ForeignJournalError: If its order regime is not installed here.
        InputError: If it is no such record.
    """
    try:
        calls = tuple(_parse_call(entry[0], entry[1:]) for entry in written["calls"])
        opening = None
        if "site" in written:
            site, origin = _read_site(written["site"]), _read_origin(written)
            _check_jobs(origin, site.cluster)
            _check_beliefs(origin.beliefs, site.cluster)
            _check_turns(origin.turns)
            opening = site, origin
        return JournalRecord(int(written["number"]), opening, calls)
    except (ValidationError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise InputError(f"the journal of a decision cannot be read: {str(error).splitlines()[0]}") from error


def _json_argument(argument: object) -> object:
    return _json_fields(argument) if isinstance(argument, JobRequest | JobRecord) else argument


def _json_fields(record: JobRequest | JobRecord) -> tuple[object, ...]:
    if isinstance(record, JobRecord):
        progress: tuple[object, ...] = _RECORD_FIELDS(record)
        return progress if record.came_back else progress[:-1]
    request: tuple[object, ...] = _REQUEST_FIELDS(record)
    is_default = record.user == "", record.spread is None, not record.types  # from the last field back
    omitted = next((number for number, default in enumerate(is_default) if not default), len(is_default))
    return request[: len(request) - omitted]


def _parse_call(method: str, arguments: list[object]) -> MirrorCall:
    values = _OF_METHOD[method].validate_python(tuple(arguments))
    if method == "submit":
        return MirrorCall(method, (_parse_request(values[0]),))
    if method in ("come_back", "rejoin"):
        return MirrorCall(method, (_parse_request(values[0]), _parse_waiting_record(values[1])))
    return MirrorCall(method, values)


def _parse_waiting_record(values: tuple[Any, ...]) -> JobRecord:
    record = JobRecord(*values)
    if record.gpus or not 0.0 < record.guess_s < np.inf:
        raise ValueError("a job that comes back holds no GPUs, and work is expected of it")
    return record


def _parse_request(values: tuple[Any, ...]) -> JobRequest:
    request = JobRequest(*values)
    if not 0 < request.gpus < MAX_JOURNAL_GPUS or not 0.0 < request.estimate_s < np.inf:
        raise ValueError(f"job {request.job} asks for {request.gpus} GPUs for {request.estimate_s} s")
    if request.spread is not None and not request.spread.fits_gpus(request.gpus):
        raise ValueError(f"job {request.job} has a plan that cannot be")
    return request


def _read_origin(written: Mapping[str, Any]) -> MirrorOrigin:
    now_s, jobs, queue, down, estimates = _ORIGIN.validate_python(written["known"])
    jobs = [(_parse_request(request), JobRecord(*record)) for request, record in jobs]
    beliefs = Beliefs(*_BELIEFS.validate_python(written["beliefs"])) if "beliefs" in written else None
    return MirrorOrigin(now_s, jobs, queue, down, estimates, beliefs, _TURNS.validate_python(written.get("turns", [])))


def _check_turns(turns: Sequence[QueueTurn]) -> None:
    """Refuse turns with impossible times or numbers."""
    fits = all(
        min(turn.led, turn.started) >= 0 and max(turn.led, turn.started) < MAX_TURN_NUMBER
        and np.isfinite([turn.led_s, turn.started_s]).all()
        for turn in turns
    )  # fmt: skip
    if not fits:
        raise ValueError(f"turns of users that cannot be, of {len(turns)} users")


def _site_to_json(site: ClusterSite) -> dict[str, object]:
    return {
        # Not which nodes suit whom: that comes with the jobs.
        "cluster": {name: _array_to_json(array) for name, array in site.cluster._asdict().items() if name != "suits"},
        "rules": {name: _number_to_json(value) for name, value in site.rules._asdict().items()}
        | {"order": list(ORDERS)[site.rules.order]},
        "process": {
            name: _array_to_json(value) if isinstance(value, np.ndarray) else _number_to_json(value)
            for name, value in site.process._asdict().items()
        },
        "hazard_per_s": _array_to_json(site.hazard_per_s),
        "types": list(site.type_names),
    }


def _read_site(written: Mapping[str, Any]) -> ClusterSite:
    arrays = {name: _read_array(array) for name, array in written["cluster"].items()}
    cluster = Cluster(**arrays, suits=np.ones((1, arrays["speed"].size), dtype=np.int32))
    order = str(written["rules"]["order"])  # by its name
    if order not in ORDERS:
        text = f"they follow the order regime {shortened(order)}, which no package registers here"
        raise ForeignJournalError(text)
    values = {**written["rules"], "order": ORDERS[order]}
    rules = Rules(**{name: kind(values[name]) for name, kind in Rules.__annotations__.items()})
    shape, mean_s, sigma, transient, *arrays_written = (written["process"][name] for name in FaultProcess._fields)
    first, start_s, end_s = map(_read_array, arrays_written)
    process = FaultProcess(float(shape), float(mean_s), float(sigma), float(transient), first, start_s, end_s)
    hazard_per_s = _read_array(written["hazard_per_s"])
    _check_cluster(cluster, hazard_per_s)
    return ClusterSite(cluster, rules, process, hazard_per_s, tuple(map(str, written.get("types", ()))))


def _check_cluster(cluster: Cluster, hazard_per_s: NDArray[Any]) -> None:
    """Refuse arrays that do not go together: compiled code trusts them."""
    nodes, racks, gpus = cluster.speed.size, cluster.uplink_bytes_per_s.size, cluster.gpu_node.size
    sizes = (
        cluster.first_gpu.size - 1, cluster.node_rack.size, cluster.node_type.size, cluster.peak_flops.size,
        cluster.memory_bytes.size, cluster.intra_bytes_per_s.size, cluster.nic_bytes_per_s.size,
    )  # fmt: skip
    per_node, per_rack = np.diff(cluster.first_gpu), np.diff(cluster.first_node)
    fits = (
        set(sizes) == {nodes} and per_rack.size == racks and hazard_per_s.size == gpus
        and cluster.first_gpu[0] == 0 == cluster.first_node[0] and (per_node >= 0).all() and (per_rack >= 0).all()
        and (cluster.gpu_node == np.repeat(np.arange(nodes), per_node)).all()
        and (cluster.node_rack == np.repeat(np.arange(racks), per_rack)).all()
    )  # fmt: skip
    if not fits:
        raise ValueError(f"a cluster of {gpus} GPUs on {nodes} nodes whose parts do not go together")


def _check_jobs(origin: MirrorOrigin, cluster: Cluster) -> None:
    """Refuse impossible jobs and GPUs: compiled code trusts them."""
    gpus = cluster.gpu_node.size
    held = [gpu for _, record in origin.jobs for gpu in record.gpus]
    runs = {request.job for request, record in origin.jobs if record.gpus}
    waits = {request.job for request, record in origin.jobs if not record.gpus}
    fits = (
        len(origin.jobs) == len(runs) + len(waits)
        and len(set(held)) == len(held)
        and all(0 <= gpu < gpus for gpu in (*held, *origin.down))
        and all(0.0 < record.guess_s < np.inf for _, record in origin.jobs)
        and len(set(origin.queue)) == len(origin.queue)
        and waits.issuperset(origin.queue)
    )
    if not fits:
        raise ValueError(f"a cluster of {gpus} GPUs whose {len(origin.jobs)} jobs do not go together")


def _check_beliefs(beliefs: Beliefs | None, cluster: Cluster) -> None:
    """Refuse impossible fault rates."""
    if beliefs is None:
        return
    gpus, nodes = cluster.gpu_node.size, cluster.speed.size
    sizes = [gpus, *(nodes for _ in beliefs[1:])]
    # Each is at least 0, but for the time of the last fault, which is -1 for none.
    fits = [len(values) for values in beliefs] == sizes and all(
        (-1.0 if name == "failed_s" else 0.0) <= value < np.inf
        for name, values in beliefs._asdict().items()
        for value in values
    )
    if not fits or not set(beliefs.lemon) <= {0, 1}:
        raise ValueError(f"a cluster of {gpus} GPUs on {nodes} nodes that has no such fault rates")


def _array_to_json(array: NDArray[Any]) -> dict[str, object]:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {"dtype": little.dtype.str, "base64": base64.b64encode(np.ascontiguousarray(little).tobytes()).decode()}


def _read_array(written: Mapping[str, str]) -> NDArray[Any]:
    if written["dtype"] not in ("<i4", "<f8"):
        raise ValueError(f"an array of {written['dtype']!r}")
    return np.frombuffer(base64.b64decode(written["base64"], validate=True), written["dtype"]).copy()


def _number_to_json(value: object) -> object:
    """Return a number as JSON has it, which knows no infinity."""
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
