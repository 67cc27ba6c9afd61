"""The API as the command line sees it."""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from ..cluster.files.certificates import client_tls_context, tls_problem
from ..cluster.files.errors import BackendError, InputError

PAUSES_S = (0.1, 0.3, 1.0, 2.0, 4.0)  # before a request is sent again
RETRIED_STATUSES = frozenset({409, 503})  # statuses after which a retry may help, if the answer names a time
OUTAGE_S = 300.0  # for which a scheduler may be away that was there: it is started anew, or another takes over
LIST_PAGE_JOBS, MAX_QUEUE_PAGE_JOBS = 200, 1000  # jobs of one answer: of the list, and of the queue
TOKENLESS = (
    "set LONGSHORE_TOKEN; who started the scheduler has the first token in the file `token` of its folder, and others "
    "are given one by an operator (`longshore token create NAME --owner OWNER`)"
)
REFUSED = (
    "set LONGSHORE_TOKEN to a valid one, which an operator makes (`longshore token create NAME --owner OWNER`); where "
    "it is not set, the token of the scheduler that you started yourself is searched for"
)
REPORT_TIMEOUT_S = 3.0  # for the answer to an agent's report, of which the next is due soon
END = "end"  # event after the last one of a stream
POSITION = "position"  # event without data, behind which a stream begins


class ReceivedEvent(NamedTuple):
    """A server-sent event."""

    id: str
    event: str
    data: dict[str, Any]


class Client:
    """Talks to a scheduler.

    Args:
        url: Where it serves.
        token: Returns the token by which it knows the user, None without one. It is asked before each request.
        ca: File of the authorities that alone are trusted to vouch for it; by default those of the system.

    Raises:
        InputError: If that is no URL, or if that file, or one that the environment names in its place, cannot be used.
    """

    def __init__(self, url: str, token: Callable[[], str | None] = lambda: None, ca: Path | None = None) -> None:
        is_plain = url.lower().startswith("http:")
        # To load the certificates takes 20 ms; a file that is named and cannot be used is an error with any URL.
        tls = client_tls_context(ca) if ca is not None or not is_plain else False
        try:
            self._http = httpx.Client(base_url=url, timeout=30.0, trust_env=False, auth=self._add_token, verify=tls)
        except httpx.InvalidURL as error:
            fix = "set LONGSHORE_URL or --url to one such as http://127.0.0.1:8765"
            raise InputError(f"{url!r} is no URL of a scheduler: {error}", fix) from error
        self._url, self._token, self._had_token, self._is_secured = url, token, False, not is_plain

    def _add_token(self, request: httpx.Request) -> httpx.Request:
        """Add the token to a request; none is sent without one once there was one.

        Raises:
            ConnectError: If there was a token, and there is none for who listens there by now.
        """
        token = self._token()
        if token is not None:
            request.headers["Authorization"], self._had_token = f"Bearer {token}", True
        elif self._had_token:
            raise httpx.ConnectError("the scheduler that took the token does not listen there", request=request)
        return request

    def _call(
        self, method: str, path: str, *, pauses_s: Sequence[float] = PAUSES_S, **arguments: Any
    ) -> httpx.Response:
        """Ask once, and again where the answer was lost: no request that is repeated does its work twice."""
        for pause_s in (*pauses_s, None):
            try:
                answer = self._http.request(method, path, **arguments)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
                raise self._unreachable_error(error) from error
            except httpx.TransportError as error:
                if pause_s is None:
                    raise self._unreachable_error(error) from error
            else:
                if pause_s is None or answer.status_code not in RETRIED_STATUSES or "Retry-After" not in answer.headers:
                    return self._checked_answer(answer)
            time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _unreachable_error(self, error: Exception) -> BackendError:
        if (problem := tls_problem(error, self._url)) is not None:
            return problem
        listens = isinstance(error, (httpx.ReadError, httpx.RemoteProtocolError)) and not self._is_secured
        fix = "write https:// if a proxy with TLS stands there" if listens else "start one with `longshore serve`"
        return BackendError(f"no scheduler answers at {self._url} ({error}); {fix}")

    def _checked_answer(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = f"status {answer.status_code}"
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise InputError(detail, REFUSED if "Authorization" in answer.request.headers else TOKENLESS)
        raise InputError(detail) if answer.is_client_error else BackendError(f"the scheduler at {self._url}: {detail}")

    def _get_list(self, path: str, **parameters: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("GET", path, params=parameters).json()
        return found

    def submit(self, spec: Mapping[str, object], key: str | None = None) -> dict[str, Any]:
        """Submit a job once, and return what it became.

        Args:
            spec: The job file.
            key: By which a request that is sent again is known; by default a fresh one.
        """
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        found: dict[str, Any] = self._call("POST", "/v1/jobs", json=spec, headers=headers).json()
        return found

    def dry_run(self, spec: Mapping[str, object]) -> dict[str, Any]:
        """Return what would become of a job."""
        found: dict[str, Any] = self._call("POST", "/v1/jobs", json=spec, params={"dry_run": True}).json()
        return found

    def jobs(self, filters: Mapping[str, object], limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield jobs, the last submitted first.

        Args:
            filters: By state, user and name.
            limit: Most jobs.
        """
        cursor: str | None = None
        while limit is None or limit > 0:
            size = LIST_PAGE_JOBS if limit is None else min(limit, LIST_PAGE_JOBS)
            asked = {**filters, "limit": size, **({} if cursor is None else {"cursor": cursor})}
            page = self._call("GET", "/v1/jobs", params=asked).json()
            yield from page["jobs"]
            cursor, limit = page["cursor"], None if limit is None else limit - len(page["jobs"])
            if cursor is None:
                return

    def queue(self, filters: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """Yield the jobs that have not ended: those that hold GPUs, the queue in its order, and those outside of it.

        Args:
            filters: By state, user and name.
        """
        seen: set[str] = set()  # the queue moves between two pages
        offset = 0
        while True:
            page = self._call(
                "GET", "/v1/queue", params={**filters, "limit": MAX_QUEUE_PAGE_JOBS, "offset": offset}
            ).json()
            yield from (job for job in page["jobs"] if job["id"] not in seen)
            seen.update(job["id"] for job in page["jobs"])
            offset += MAX_QUEUE_PAGE_JOBS
            if offset >= page["total"]:
                return

    def job(self, job: str, within_s: float | None = None) -> dict[str, Any]:
        """Return a job with all that is known of it.

        Args:
            job: Its id.
            within_s: Time for the answer to the only try; by default there are several.
        """
        limits: dict[str, Any] = {} if within_s is None else {"timeout": within_s, "pauses_s": ()}
        found: dict[str, Any] = self._call("GET", f"/v1/jobs/{_quoted_part(job)}", **limits).json()
        return found

    def training(self, job: str) -> dict[str, Any]:
        """Return what is known of a job's iterations."""
        found: dict[str, Any] = self._call("GET", f"/v1/jobs/{_quoted_part(job)}/training").json()
        return found

    def sub_tasks(self, job: str) -> dict[str, Any] | None:
        """Return what each rank of a job does, None for one without a plan."""
        found: dict[str, Any] | None = self._call("GET", f"/v1/jobs/{_quoted_part(job)}/sub-tasks").json()
        return found

    def cluster(self) -> dict[str, Any]:
        """Return what GPUs there are."""
        found: dict[str, Any] = self._call("GET", "/v1/cluster").json()
        return found

    def ring(self, job: str) -> dict[str, Any] | None:
        """Return how the ring of a job stands, None if it has none that runs."""
        found: dict[str, Any] | None = self._call("GET", f"/v1/jobs/{_quoted_part(job)}/ring").json()
        return found

    def want(self, job: str, desired: str) -> dict[str, Any]:
        """Let a job run or hold it, whatever has become of it meanwhile."""
        return self._patch_job(job, {"desired": desired})

    def prioritise(self, job: str, priority: int) -> dict[str, Any]:
        """Give a job another priority."""
        return self._patch_job(job, {"priority": priority})

    def _patch_job(self, job: str, change: dict[str, object]) -> dict[str, Any]:
        found: dict[str, Any] = self._call(
            "PATCH", f"/v1/jobs/{_quoted_part(job)}", json=change, headers={"If-Match": "*"}
        ).json()
        return found

    def retry(self, job: str) -> dict[str, Any]:
        """Let a job be tried again that failed or is held."""
        found: dict[str, Any] = self._call("POST", f"/v1/jobs/{_quoted_part(job)}/retry").json()
        return found

    def cancel(self, job: str) -> dict[str, Any]:
        """Cancel a job."""
        found: dict[str, Any] = self._call("DELETE", f"/v1/jobs/{_quoted_part(job)}").json()
        return found

    def decisions(self, job: str) -> list[dict[str, Any]]:
        """Return the decisions on a job."""
        return self._get_list(f"/v1/jobs/{_quoted_part(job)}/decisions")

    def nodes(self) -> list[dict[str, Any]]:
        """Return all nodes."""
        return self._get_list("/v1/nodes")

    def logs(
        self, job: str, rank: str, offset: int, attempt: int | None = None, tail: int | None = None
    ) -> tuple[bytes, int | None]:
        """Return what a rank wrote, and where to go on; None after the output of all ranks.

        Args:
            job: Id of the job.
            rank: Number of the rank, or `all`.
            offset: Where to begin, in bytes; 0 for all ranks.
            attempt: Which one; by default the last.
            tail: Number of last lines to return.
        """
        asked = {"rank": rank, "offset": offset, **_without_none(attempt=attempt, tail=tail)}
        answer = self._call("GET", f"/v1/jobs/{_quoted_part(job)}/logs", params=asked)
        after = answer.headers.get("Next-Offset")
        return answer.content, None if after is None else int(after)

    def follow_logs(
        self, job: str, rank: str, attempt: int | None = None, tail: int | None = None
    ) -> Iterator[str]:  # fmt: skip
        """Yield what a rank writes, or all of them, until the job has ended; of an attempt, until that has."""
        asked = {"rank": rank, "follow": True, **_without_none(attempt=attempt, tail=tail)}
        for event in self._follow(f"/v1/jobs/{_quoted_part(job)}/logs", asked):
            yield str(event.data["text"])

    def follow_events(self, after: int | None) -> Iterator[dict[str, Any]]:
        """Yield what happens, from an event on, or from now on; never ends."""
        for event in self._follow("/v1/events", {} if after is None else {"after": after}):
            yield event.data

    def _follow(self, path: str, parameters: dict[str, Any]) -> Iterator[ReceivedEvent]:
        """Yield the events of a stream until its end, each once, also if the scheduler or its store is away meanwhile.

        Raises:
            BackendError: If it does not answer, or sends no events.
            InputError: If it refuses the request, and a retry cannot help.
        """
        last: dict[str, str] = {}
        tries, away_s = 0, float("-inf")  # and when it went away that had answered
        while True:
            answers, waits = False, tries < len(PAUSES_S) or time.monotonic() - away_s <= OUTAGE_S
            try:
                with self._http.stream("GET", path, params=parameters, headers=last) as answer:
                    answers = answer.is_success
                    if not answers and not (waits and _may_pass(answer)):
                        answer.read()
                        self._checked_answer(answer)
                    for event in self._events_of(answer) if answers else ():
                        if event.event == END:
                            return
                        last = {"Last-Event-ID": event.id}
                        if event.event != POSITION:
                            yield event
            except httpx.TransportError as error:
                if not answers and not waits:
                    raise self._unreachable_error(error) from error
            if answers:
                tries, away_s = 0, time.monotonic()
            time.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1

    def _events_of(self, answer: httpx.Response) -> Iterator[ReceivedEvent]:
        try:
            yield from parse_events(answer.iter_bytes())
        except ValueError as error:
            raise BackendError(f"what answers at {self._url} sends no events ({error})") from error

    def drain(self, node: str, reason: str) -> None:
        """Take a node out of service."""
        self._call("POST", f"/v1/nodes/{_quoted_part(node)}/drain", json={"reason": reason})

    def resume(self, node: str) -> None:
        """Put a node into service again."""
        self._call("POST", f"/v1/nodes/{_quoted_part(node)}/resume")

    def report(self, node: str, event: Mapping[str, object]) -> dict[str, Any]:
        """Tell what an agent sees of its node, and return for how long its jobs may live there."""
        # A lease lasts for several reports: one without an answer must not hold up the next.
        answer = self._call(
            "POST", f"/v1/nodes/{_quoted_part(node)}/report", json=event, timeout=REPORT_TIMEOUT_S, pauses_s=()
        )
        found: dict[str, Any] = answer.json()
        return found

    def report_check_outcome(self, node: str, order: str, *, passed: bool, evidence: str) -> None:
        """Tell what checks found that the scheduler had asked an agent for."""
        content = {"passed": passed, "evidence": evidence}
        self._call("POST", f"/v1/nodes/{_quoted_part(node)}/checks/{_quoted_part(order)}", json=content)

    def report_port_probes(self, node: str, results: Mapping[str, str]) -> None:
        """Report what an agent found when it probed other agents, as the scheduler had ordered."""
        self._call("POST", f"/v1/nodes/{_quoted_part(node)}/port-probes", json={"results": results})

    def faults(self) -> dict[str, Any]:
        """Return the history of faults of nodes."""
        found: dict[str, Any] = self._call("GET", "/v1/faults").json()
        return found

    def quarantines(self, filters: Mapping[str, object]) -> list[dict[str, Any]]:
        """Return what stands in quarantine; with `cleared` what stood there lately, too."""
        return self._get_list("/v1/quarantine", **filters)

    def put_into_quarantine(self, finding: Mapping[str, object]) -> str:
        """Put what was found to be broken into quarantine, and return what came of it."""
        return str(self._call("POST", "/v1/quarantine", json=finding).json()["acted"])

    def clear_quarantine(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Clear a place, or have it checked, and return which of the two."""
        found: dict[str, Any] = self._call("POST", "/v1/quarantine/clear", json=request).json()
        return found

    def unknown(self) -> list[dict[str, Any]]:
        """Return the attempts that run and are not in the store."""
        return self._get_list("/v1/unknown-attempts")

    def resolve_unknown(self, attempt: str, action: str) -> None:
        """End or disregard an attempt that is not in the store."""
        self._call("POST", f"/v1/unknown-attempts/{_quoted_part(attempt)}/{action}")

    def tokens(self, owner: str | None) -> list[dict[str, Any]]:
        """Return the tokens of the user, or of another one."""
        return self._get_list("/v1/users/me/tokens", **({} if owner is None else {"owner": owner}))

    def create_token(self, request: Mapping[str, object]) -> str:
        """Make a token and return it."""
        # Once: if the answer is lost, a second request would only find that a token has the name.
        return str(self._call("POST", "/v1/users/me/tokens", json=request, pauses_s=()).json()["token"])

    def browser_path(self) -> str:
        """Return the path that lets one browser into the dashboard."""
        return str(self._call("POST", "/v1/browser-links").json()["path"])

    def revoke_token(self, name: str, owner: str | None) -> None:
        """Let a token expire at once."""
        asked = {} if owner is None else {"owner": owner}
        self._call("DELETE", f"/v1/users/me/tokens/{_quoted_part(name)}", params=asked)


def _may_pass(answer: httpx.Response) -> bool:
    """Return whether a refused stream may be opened later: the store or the scheduler is away, or all slots are taken.

    A scheduler does not always know yet that the last connection of the same follower is dead.
    """
    return answer.is_server_error or "Retry-After" in answer.headers


def parse_events(chunks: Iterable[bytes]) -> Iterator[ReceivedEvent]:
    """Yield the events in the bytes of a stream; one that was cut off is not among them.

    Raises:
        ValueError: If the stream holds something else.
    """
    fields: dict[str, str] = {}
    for line in _lines_of(chunks):
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            yield _event_of(fields)
            fields = {}


def _lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield whole lines. They end at a line feed alone: other ends that Unicode knows may be part of a text."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()


def _event_of(fields: Mapping[str, str]) -> ReceivedEvent:
    """Return an event; one without data only names the position in the stream."""
    number = fields.get("id", "")
    if "data" not in fields and number:
        return ReceivedEvent(number, POSITION, {})
    data = json.loads(fields.get("data", ""))
    if not isinstance(data, dict):
        raise ValueError("the data of an event is no object")
    return ReceivedEvent(number, fields.get("event", "message"), data)


def _without_none(**parameters: object) -> dict[str, Any]:
    """Return the parameters that are given."""
    return {name: value for name, value in parameters.items() if value is not None}


def _quoted_part(text: str) -> str:
    """Return a text as one part of a path, whatever is in it."""
    if not text:
        raise InputError("an id or name is empty", "`longshore queue` shows the ids of jobs")
    return quote(text, safe="").replace(".", "%2E")
